"""Write site/, the static page for choosing a GPU, from the rows in results/ and tables in docs/.

A double click on site/index.html opens it.

Next: open it in a browser
"""

from tools.site import site_page
from Utils.base import paths
from Utils.base.command_line import Parser
from Utils.base.errors import run_command


def main(*words):
    Parser("site", __doc__).parse_args(words)
    folder = paths.ROOT / "site"
    site_page.write(folder)
    print(folder / "index.html")


if __name__ == "__main__":
    run_command("site", main)
