"""With this folder on PYTHONPATH ``import dgl`` fails in every Python started, notebook kernels included."""

import sys


class NoDGL:
    """A finder that refuses DGL and leaves everything else to the others."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Raise ImportError for dgl and its parts."""
        if name == "dgl" or name.startswith("dgl."):
            raise ImportError("dgl is blocked here: this run imitates a machine without it")
        return None


sys.meta_path.insert(0, NoDGL)
