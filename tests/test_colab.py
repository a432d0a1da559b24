"""Without DGL: the block that ``make test-colab`` uses works, in kernels too, and the package serves without it."""

import os
import sys
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

BLOCK = str(Path(__file__).resolve().parent / "no_dgl")
PROBE = """
import easydgl_mini as em, torch
try:
    import dgl
    print("dgl imported")
except ImportError as error:
    print(error)
try:
    from dgl import ops
    print("dgl.ops imported")
except ImportError as error:
    print("no ops either")
graph = em.TemporalGraph(src=[1, 2, 0], dst=[0, 0, 1], num_nodes=3)
print(em.backend(), em.edge_softmax(graph, torch.zeros(3)).tolist())
"""


def ask(code, environment):
    """Run code in a fresh kernel started with this environment; returns what it printed."""
    manager, client = start_new_kernel(kernel_name="python3", env=environment)
    printed = []
    try:

        def collect(message):
            content = message["content"]
            if message["msg_type"] == "error":
                printed.append(f"{content['ename']}: {content['evalue']}")
            elif "text" in content:
                printed.append(content["text"])

        client.execute_interactive(code, timeout=120, output_hook=collect)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return "".join(printed)


@pytest.mark.parametrize("forced", [True, False], ids=["torch forced", "torch found"])
def test_dgl_is_blocked_in_a_kernel_and_the_package_runs(forced):
    environment = {**os.environ, "PYTHONPATH": BLOCK}
    environment.pop("EASYDGL_BACKEND", None)
    if forced:
        environment["EASYDGL_BACKEND"] = "torch"
    lines = ask(PROBE, environment).splitlines()
    assert lines == [
        "dgl is blocked here: this run imitates a machine without it",
        "no ops either",
        "torch [0.5, 0.5, 1.0]",
    ]


@pytest.mark.skipif(not os.environ.get("EASYDGL_EXPECT_NO_DGL"), reason="only under make test-colab")
def test_this_very_run_has_no_dgl():
    assert os.environ["EASYDGL_BACKEND"] == "torch"
    with pytest.raises(ImportError, match="blocked"):
        import dgl  # noqa: F401
    assert "dgl is blocked here" in ask(PROBE, dict(os.environ))
    assert "dgl" not in sys.modules
