"""Install the emulation after the import of torch, in a process with this folder on PYTHONPATH."""

import ctypes
import importlib.machinery
import os
import sys


class AfterTorch:
    """A finder of torch that installs the emulation after the module's execution."""

    @classmethod
    def find_spec(cls, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(cls)

        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def execute_and_install(module):
            execute(module)
            ctypes.CDLL(os.environ["VIRTUAL_GPU_EMULATION"]).install()

        spec.loader.exec_module = execute_and_install
        return spec


sys.meta_path.insert(0, AfterTorch)
