"""Install the emulation after the import of torch, in a process with this folder on PYTHONPATH.

Compiled code cannot be emulated, so torch.compile uses the backend aot_eager.
"""

import ctypes
import importlib.machinery
import os
import sys

KEPT = []


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
            install(module)

        spec.loader.exec_module = execute_and_install
        return spec


def install(torch):
    import attention  # noqa: PLC0415  (in this folder; it imports torch)

    ctypes.CDLL(os.environ["VIRTUAL_GPU_EMULATION"]).install()
    KEPT.append(attention.install())

    # torch.compile, with another backend
    compile_function = torch.compile
    compile_module = torch.nn.Module.compile

    def eager(options):
        kept = {key: value for key, value in options.items() if key not in ("mode", "options")}
        return kept | {"backend": "aot_eager"}

    def compile(model=None, **options):
        if model is None:
            return lambda function: compile(function, **options)
        return compile_function(model, **eager(options))

    torch.compile = compile
    torch.nn.Module.compile = lambda self, *args, **options: compile_module(
        self, *args, **eager(options)
    )


sys.meta_path.insert(0, AfterTorch)
