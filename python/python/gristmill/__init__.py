"""Large language models from GGUF files, with kernels compiled for this machine.

>>> import gristmill
>>> model = gristmill.Model("demo")
>>> for piece in model.chat("Hello", max_tokens=20):
...     print(piece, end="", flush=True)
"""

import os as _os

from ._gristmill import GristmillError, Model, TextStream, __version__
from ._gristmill import set_packages as _set_packages

#: Folder of packages that contains this one; compilers of kernels are looked for there.
_PACKAGES = _os.path.dirname(_os.path.dirname(_os.path.abspath(__file__)))
_set_packages(_PACKAGES)

__all__ = ["GristmillError", "Model", "TextStream", "__version__"]
