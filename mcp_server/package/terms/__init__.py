"""What a generated kernel computes, as terms: read from C++ or Triton, evaluated, bounded, put in words.

Nothing here knows packages, wrappers or diagnoses. A kernel is any object with `kind`, `source`, `parameters`
and `grid` (`Source`).

    program = read_program(kernel)
    for store in program.stores:      # parameter[index] = value, for all of ranges, where test holds
        print(store.parameter, say(store.index), say(store.value), [each.name for each in store.ranges])

`program.accesses` has every load, store and update with its place, its loops and its test, `program.checks`
the index assertions, `program.definitions` what each variable is. `understood` and `is_understood` say
whether all of the code behind a term, a store or a program was read; from anything else nothing may be
concluded.
`Evaluator` computes a term for given loop variables, sizes and elements.
"""

from mcp_server.package.terms.evaluate import Evaluator, UnknownValue
from mcp_server.package.terms.program import (
    Access,
    Check,
    Definition,
    Parameter,
    Place,
    Program,
    Source,
    Store,
    position_of,
    read_program,
)
from mcp_server.package.terms.sizes import evaluate, evaluate_whole, in_words, size_term
from mcp_server.package.terms.term import (
    Apply,
    Element,
    Fold,
    Number,
    Position,
    Range,
    Size,
    Term,
    Unread,
    elements,
    parts,
    rebuilt,
    say,
    understood,
)

__all__ = [
    "Access",
    "Apply",
    "Check",
    "Definition",
    "Element",
    "Evaluator",
    "Fold",
    "Number",
    "Parameter",
    "Place",
    "Position",
    "Program",
    "Range",
    "Size",
    "Source",
    "Store",
    "Term",
    "UnknownValue",
    "Unread",
    "elements",
    "evaluate",
    "evaluate_whole",
    "in_words",
    "parts",
    "position_of",
    "read_program",
    "rebuilt",
    "say",
    "size_term",
    "understood",
]
