"""Write book/concordance.md: each equation of the paper, where the book derives it, the function that is it, its test.

    python book/_tools/concordance.py

`tests/test_concordance.py` checks that the page is the one this script writes and that everything it names exists.
"""

import json
import re
from pathlib import Path

BOOK = Path(__file__).resolve().parents[1]

# label in the paper, what it says, (notebook, equation label in it), function in the package, test
ROWS = [
    ("Background", None),
    (
        "eq:att",
        "attention as a weighted average",
        ("graph_attention", "eq-att-att"),
        "edge_softmax",
        "test_graph.py::test_kernels_equal_a_plain_loop_forward_and_backward",
    ),
    (
        "eq:sa",
        "self-attention's score",
        ("graph_attention", "eq-att-sa"),
        "encode.attention_scores",
        "test_scores.py::test_by_hand",
    ),
    (
        "eq:gat",
        "GAT's score",
        ("graph_attention", "eq-att-gat"),
        "encode.GATConv",
        "test_models.py::test_gatconv_equals_dgl",
    ),
    (
        "eq:gatv2",
        "GATv2's score (misprinted in the paper)",
        ("graph_attention", "eq-att-gatv2"),
        "encode.attention_scores",
        "test_scores.py::test_gatv2_equals_dgl",
    ),
    (
        "eq:intensity",
        "conditional intensity",
        ("point_processes", "eq-intensity"),
        "simulate.hawkes_intensity",
        "test_simulate.py::test_hawkes_functions_against_plain_loops",
    ),
    (
        "eq:tpp_mle",
        "likelihood of a point pattern",
        ("point_processes", "eq-tpp-likelihood"),
        "simulate.hawkes_log_likelihood",
        "test_simulate.py::test_hawkes_log_likelihood_by_hand",
    ),
    ("Encoding", None),
    ("eq:tcats0", "attention that counts arriving edges", ("modulated_attention", "eq-count"), None, None),
    ("eq:gcats1", "its expectation", ("modulated_attention", "eq-aia-expect"), None, None),
    ("eq:catf_point", "attention at a point in time", ("modulated_attention", "eq-aia-expect"), None, None),
    (
        "eq:scatf_point",
        "one rate for each cluster",
        ("modulated_attention", "eq-modulated"),
        "encode.AIAConv",
        "test_aia.py::test_graph_layer_by_hand_on_three_nodes",
    ),
    (
        "eq:gcoding",
        "features and clusters together",
        ("modulated_attention", "eq-aia-values"),
        "encode.LinkEncoder",
        "test_models.py::test_padding_changes_nothing",
    ),
    (
        "eq:vtransf",
        "values",
        ("modulated_attention", "eq-aia-values"),
        "encode.AIAConv",
        "test_aia.py::test_graph_layer_equals_its_equations_in_loops",
    ),
    (
        "eq:tt_alpha",
        "interactions that follow the calendar",
        ("modulated_attention", "eq-aia-alpha"),
        "encode.calendar",
        "test_aia.py::test_a_hidden_cluster_does_not_leak_into_the_query",
    ),
    (
        "eq:pp_att",
        "the state: first attention",
        ("modulated_attention", "eq-aia-state"),
        "encode.AIAConv",
        "test_aia.py::test_the_state_gives_rates_at_any_time",
    ),
    (
        "eqn:att_g",
        "gates: endogenous and exogenous",
        ("modulated_attention", "eq-aia-gate"),
        "encode.Intensity",
        "test_intensity.py::test_equals_the_equations_written_out",
    ),
    (
        "eqn:att_l",
        "rates",
        ("modulated_attention", "eq-aia-rate"),
        "encode.Intensity",
        "test_intensity.py::test_by_hand",
    ),
    (
        "eq:splus",
        "softplus with a timescale",
        ("point_processes", "eq-tpp-softplus"),
        "encode.softplus",
        "test_intensity.py::test_softplus_is_stable_positive_and_right",
    ),
    (
        "eq:iamolding",
        "modulation: second attention",
        ("modulated_attention", "eq-aia-modulate"),
        "encode.AIAAttention",
        "test_aia.py::test_elapsed_of_one_node_changes_that_node_only",
    ),
    (
        "eq:cat_mhcomb",
        "heads",
        ("modulated_attention", "eq-aia-heads"),
        "encode.AIAConv",
        "test_aia.py::test_graph_layer_equals_its_equations_in_loops",
    ),
    (
        "eq:te",
        "time encoding (misprinted in the paper)",
        ("modulated_attention", "eq-aia-te"),
        "encode.time_encoding",
        "test_time.py::test_encoding_equals_its_definition_component_by_component",
    ),
    ("Training", None),
    ("eqn:ctr_loss", "task loss minus weighted likelihood", ("tpple", "eq-tpl-loss"), None, None),
    ("eq:ctreg", "TPPLE", ("tpple", "eq-tpl-R"), "train.tpple", "test_tpple.py::test_tpple_by_hand"),
    (
        "eqn:mc",
        "its integral by Monte Carlo",
        ("tpple", "eq-tpl-mc"),
        "train.compensator",
        "test_tpple.py::test_monte_carlo_is_unbiased_within_its_standard_error",
    ),
    (
        "eqn:nu",
        "its integral by the trapezoid",
        ("tpple", "eq-tpl-nu"),
        "train.compensator",
        "test_tpple.py::test_trapezoid_converges_with_the_square_of_the_number_of_pieces",
    ),
    (
        "eq:spmask",
        "masking with a special token",
        ("masking", "eq-cam-token"),
        "train.TokenMask",
        "test_cam.py::test_typical_masking_keeps_keys_and_shares_one_token",
    ),
    (
        "eq:camask",
        "correlation-adjusted masking",
        ("masking", "eq-cam-label"),
        "train.CaM",
        "test_cam.py::test_the_label_is_heard_only_through_attention",
    ),
    ("Interpreting", None),
    (
        "eq:gft",
        "graph Fourier transform",
        ("graph_fourier", "eq-gft-gft"),
        "interpret.gft",
        "test_fourier.py::test_parseval_and_inverse",
    ),
    (
        "eq:pertb",
        "intra-perturbation",
        ("perturbations", "eq-prt-intra"),
        "interpret.perturb",
        "test_perturb.py::test_intra_perturbation_clears_the_band_and_nothing_else",
    ),
    (
        "eq:interpertb",
        "inter-perturbation",
        ("perturbations", "eq-prt-inter"),
        "interpret.perturb",
        "test_perturb.py::test_inter_perturbation_swaps_the_band_and_nothing_else",
    ),
    (
        "alg:eigen",
        "orthogonal Nyström decomposition",
        ("nystrom", "eq-nys-ritz"),
        "interpret.decompose",
        "test_decompose.py::test_nystrom_ritz_step",
    ),
    ("th:Snorm", "its error bound", ("proofs", "eq-prf-printed"), None, None),
]

HEAD = """# Concordance

Every numbered equation of the paper {footcite:p}`chen2024easydgl`, by its label in the paper's source: the equation of
this book that states it, the function of `easydgl_mini` that is it, and a test that would turn red if the two parted.
Where the table says *not yet written*, it is not yet written. This page is generated
(`python book/_tools/concordance.py`), and a test checks that everything it names exists.
"""


def title(notebook):
    """A notebook's first heading."""
    cells = json.loads((BOOK / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    return re.search(r"^# (.+)$", "".join(cells[0]["source"]), re.M)[1]


def row(label, meaning, place, function, test):
    """One line of the table."""
    chapter = "*not yet written*"
    if place:
        notebook, equation = place
        chapter = f"[{title(notebook)}]({notebook}.ipynb), {{eq}}`{equation}`"
    code = f"`em.{function}`" if function else "in the chapter" if place else ""
    return f"| `{label}` | {meaning} | {chapter} | {code} | {f'`tests/{test}`' if test else ''} |"


def page():
    """The whole page."""
    lines = [HEAD]
    for entry in ROWS:
        if entry[1] is None:
            lines += ["", f"## {entry[0]}", "", "| paper | what | chapter | function | test |", "|---|---|---|---|---|"]
        else:
            lines.append(row(*entry))
    return "\n".join([*lines, "", "## References", "", "```{footbibliography}", "```", ""])


if __name__ == "__main__":
    (BOOK / "concordance.md").write_text(page(), encoding="utf-8")
    print("wrote book/concordance.md")
