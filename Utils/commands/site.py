"""Write site/, the static page on which a reader chooses a GPU: from the rows in results/ and the
tables in docs/. It opens by a double click on index.html."""

from Utils.base import paths
from Utils.site import site_page


def main(args):
    folder = paths.ROOT / "site"
    site_page.write(folder)
    print(folder / "index.html")
