"""Fit the constants of the forecast of time, and write docs/forecast_check.csv.

    .venv/bin/python -m tools.calibration

It takes a few minutes; `make forecast AGAINST=published` then prints the check.
"""

import re

from tools.calibration import forecast_check, forecast_fit, published_figures
from tools.forecast import step_time


def write_constants(constants):
    """Replace the fitted values in step_time.toml, each on a line of its own."""
    text = step_time.FILE.read_text()
    for start, name in re.findall(r"^((\w+) = { value = ).*prior", text, re.M):
        text = re.sub(rf"^{start}[^,]+", f"{start}{constants[name]:.4g}", text, flags=re.M)
    step_time.FILE.write_text(text)


def main():
    figures = published_figures.figures()
    cases = forecast_fit.Cases(figures, forecast_check.works(figures))
    constants, constants_by_source = forecast_fit.fitted(cases)

    table = forecast_check.check(figures, cases, constants_by_source)
    table.to_csv(step_time.CHECK, index=False)
    write_constants(constants)

    print("docs/forecast_check.csv and tools/forecast/step_time.toml are written")


if __name__ == "__main__":
    main()
