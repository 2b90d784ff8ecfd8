"""The results that README and docs/ show are the committed ones, and are fit to be shown."""

import pytest

from tools.share.__main__ import main as submit
from tools.share.submission import Submission
from Utils.base import paths
from Utils.results import rows_file, selection

FOLDERS = [path.parent for path in selection.shared_files()]


def test_reference_folders_are_complete_by_the_check_of_pull_requests(capsys):
    """CONTRIBUTING: "`make submit CHECK=FOLDER` checks"; the workflow does so for all folders."""
    submit("--check", str(selection.SHARED))
    assert capsys.readouterr().out.splitlines() == [f"{folder}: complete" for folder in FOLDERS]
    workflow = (paths.ROOT / ".github" / "workflows" / "submission.yml").read_text()
    assert "-m tools.share CHECK=results\n" in workflow


def test_reference_results_file_is_tracked_for_its_header_alone():
    assert paths.git("show", "HEAD:results.csv") == rows_file.HEADER


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_every_folder_is_complete_and_its_page_is_made_of_its_rows(folder):
    assert (folder / "README.md").read_text() == Submission(folder).page()
    link = f"]({folder.parent.name}/{folder.name}/README.md)"
    assert link in paths.git("show", "HEAD:results/README.md")
