"""What a generated kernel computes, as terms read from C++ or Triton: their values, bounds and text.

Nothing here knows packages, wrappers or diagnoses. A kernel is any object with `kind`, `source`, `parameters`
and `grid` (`program.Source`).

    program = read_program(kernel)
    for store in program.stores:  # parameter[index] = value, for all of ranges, where test holds
        print(store.parameter, say(store.index), say(store.value), [each.name for each in store.ranges])

- `program`: `read_program` gives each `Access` with its `Place`, loops and test, each `Store` and `Check`.
- `term`, `parts`: the kinds of `Term`, their parts and elements; `say` puts one in words.
- `evaluate`: `Evaluator` for given loop variables, sizes and elements; `DOMAINS` of operators.
- `accesses`: the lanes with the extreme addresses of an access, computed in the types of the code.
- `interval`: `Bounds`, the values that a term may have, and the direction in which it changes.
- `linear`: an index as a sum of elements and sizes, and the `Limit` that its elements must keep.
- `sizes`: the sizes that a wrapper writes, evaluated and in words, and the index checks that a kernel prints.
- `blocks`, `syntax`: statements, blocks and expressions of generated code, with their offsets.

The other modules serve these. Nothing may be concluded from a term that is not `understood`.
"""
