"""Names of the zoo's models that compile on the CPU; no torch needed to know them."""

CPU_MODELS = (
    "attention",
    "bags",
    "branch",
    "conv",
    "counter",
    "jagged",
    "logarithm",
    "loop",
    "norms",
    "plugin",
    "ranker",
    "scatter",
    "select",
    "unbacked",
    "views",
)
