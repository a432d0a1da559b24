"""What every test needs before anything is imported."""

import os

os.environ.setdefault("DGLBACKEND", "pytorch")  # or DGL's first import prints, and writes into the home folder
