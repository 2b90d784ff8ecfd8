"""Write site/, the static page on which a reader chooses a GPU: from the rows in results/ and the
tables in docs/. It opens by a double click on index.html.
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
