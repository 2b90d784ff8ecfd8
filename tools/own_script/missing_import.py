"""What to do about a module that a user's script imports and that is not there."""

import shlex
from pathlib import Path

from Utils.base import paths

# Packages whose modules have another name.
PACKAGES = {
    "cv2": "opencv-python",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "PyYAML",
}


def sentence(module, spec):
    """Return what is missing and, if it is known, what to do."""
    name = module.partition(".")[0]
    text = f"imports {module}, which is not there"
    script = Path(spec["file"])
    for folder in script.parent.parents:
        if (folder / name).is_dir() or (folder / f"{name}.py").is_file():
            parts = script.relative_to(folder).with_suffix("").parts
            base = shlex.quote(f"-m {'.'.join(parts)}")
            return f"{text}; {name} lies in {folder}: BASE={base} FOLDER={shlex.quote(str(folder))}"

    package = PACKAGES.get(name)
    if package is None:
        return text
    constraints = shlex.quote(str(paths.ROOT / "requirements.txt"))
    return f"{text}; {paths.PYTHON} -m pip install -c {constraints} {package}"
