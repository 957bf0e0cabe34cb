"""A table of constructs that stop an export or compile, each with its replacement.

A rewrite changes the syntax tree of one function of the model. Every row was tried with torch 2.13: the
program fails with `text` in its error, and passes with the rewrite, with the numbers of eager mode.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import re
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Callable, Iterable, Optional

import torch
from torch.utils._pytree import tree_leaves

Node = Any  # a statement or an expression
VALUE = r"data-dependent|Data-dependent|Could not guard on|Could not extract specialized integer"
SIZE = (
    "Constraints violated|inconsistent min=|Guard failed|specialized it to be a constant|generated guard"
    "|not all values of"
)


@dataclass
class Context:
    """What a rewrite gets with its statement: module, statements before and after it, parameters, globals."""

    module: Any
    before: list[ast.stmt]
    after: list[ast.stmt]
    parameters: list[str]
    names: dict[str, Any]

    def values(self, node: Node) -> list[Any]:
        """List what a constant, a global, or `self.x` in one of the modules, may be."""
        if isinstance(node, ast.Attribute):
            return [getattr(module, node.attr, None) for module in self.module.modules()]
        return [self.names.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)]


Block = Optional[list[Node]]  # what replaces a statement and all after it, if a row fits
Made = Callable[[Node, Context], Block]


@dataclass(frozen=True)
class Rewrite:
    """`made` returns what replaces a statement and all after it in its block. None if the row does not fit.

    `text` occurs in the error; `changes` says what the user should know about the new form. `exact`: the
    changed model returns the same as before, even for other values of the inputs.
    """

    name: str
    text: str
    made: Made
    action: str
    changes: str = ""
    stage: str = "export"
    of: Any = ast.stmt  # kind of the innermost statement at the failing line, which it replaces
    exact: bool = True


Change = Callable[[Node, Any], Optional[Node]]


class Expressions(ast.NodeTransformer):
    """Replaces each expression for which `change` returns another, and counts these."""

    def __init__(self, change: Change, context: Any = None) -> None:
        self.change, self.context, self.count = change, context, 0

    def visit(self, node: Node) -> Node:
        new = self.change(node, self.context) if isinstance(node, ast.expr) else None
        self.count += new is not None
        return new if new is not None else self.generic_visit(node)


def in_expression(change: Change) -> Made:
    """Turn a rewrite of an expression into a rewrite of the statement around it."""

    def made(statement: Node, context: Context) -> Block:
        every = Expressions(change, context)
        new = every.visit(copy.deepcopy(statement))
        return [new, *context.after] if every.count else None

    return made


def parsed(text: str, **parts: Node) -> Node:
    """Build an expression from a template. Replace names in it with the nodes in `parts`."""
    return Renamed(parts).visit(ast.parse(text, mode="eval").body)


def like(*forms: tuple[str, str]) -> Made:
    """Rewrite expressions to other forms. A capital letter is any expression, `self.T` a tensor attribute."""
    return in_expression(of_forms(*forms))


def of_forms(*forms: tuple[str, str]) -> Change:
    known = [(ast.parse(old, mode="eval").body, new) for old, new in forms]

    def change(node: Node, context: Any) -> Node | None:
        found = ((new, parts_of(old, node)) for old, new in known)
        new, parts = next((each for each in found if each[1] is not None), ("", None))
        table = getattr((parts or {}).get("T"), "attr", "")
        modules = context.module.modules() if table else ()
        if table and not any(isinstance(getattr(each, table, None), torch.Tensor) for each in modules):
            return None
        inside = Expressions(change, context)
        return parsed(new, **{name: inside.visit(each) for name, each in parts.items()}) if parts else None

    return change


def parts_of(form: Node, node: Node) -> dict[str, Node] | None:
    """Match a node to a form. Return the node of each capital letter (also in `self.X`), or None."""
    if isinstance(form, ast.Name) and form.id.isupper():
        return {form.id: node} if isinstance(node, ast.expr) else None
    if isinstance(form, ast.Attribute) and form.attr.isupper():
        own = isinstance(node, ast.Attribute) and ast.unparse(node.value) == ast.unparse(form.value)
        return {form.attr: node} if own else None
    if isinstance(form, list) and isinstance(node, list) and len(form) == len(node):
        pairs = list(zip(form, node))
    elif isinstance(form, ast.AST) and type(form) is type(node):
        pairs = [(value, getattr(node, name)) for name, value in ast.iter_fields(form) if name != "ctx"]
    else:
        return {} if form == node else None
    found = [parts_of(*pair) for pair in pairs]
    whole = {name: part for each in found for name, part in (each or {}).items()}
    return None if None in found else whole


class Renamed(ast.NodeTransformer):
    """Replaces variables with other names or with nodes."""

    def __init__(self, names: Any) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> Node:
        new = self.names.get(node.id, node.id)
        return ast.Name(new, node.ctx) if isinstance(new, str) else copy.deepcopy(new)


def assign(name: str, value: Node) -> Node:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def calls(node: Node, *names: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def calls_method(node: Node, *names: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names


def without_conversion(node: Node) -> Node:
    """Reduce a test such as `bool(x.any().item())` to `x.any()`."""
    if calls(node, "bool", "int", "float") and len(node.args) == 1:
        return without_conversion(node.args[0])
    if calls_method(node, "item") and not node.args:
        return without_conversion(node.func.value)
    return node


def joined_by(operator: Any, parts: Iterable[Node]) -> Node:
    return reduce(lambda one, other: ast.BinOp(one, operator, other), parts)


class Unconverted(ast.NodeTransformer):
    """Rewrites a test with tensors, sizes or `numbers`: drops `.item()`, writes `and` as `&`."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    def is_number(self, node: Node) -> bool:
        if isinstance(node, ast.BinOp):
            parts = [each for each in (node.left, node.right) if not isinstance(each, ast.Constant)]
            return bool(parts) and all(map(self.is_number, parts))
        return is_size(node) or (isinstance(node, ast.Name) and node.id in self.numbers)

    def visit_Call(self, node: ast.Call) -> Node:
        inner = without_conversion(node)
        return inner if inner is not node else self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> Node:
        sides = [self.tensor(each) for each in (node.left, *node.comparators)]
        pairs = zip(sides, node.ops, sides[1:])
        return joined_by(ast.BitAnd(), [ast.Compare(left, [how], [right]) for left, how, right in pairs])

    def tensor(self, node: Node) -> Node:
        if not self.is_number(node):
            return self.visit(node)
        size = parsed("X.shape[0]", X=node.args[0]) if calls(node, "len") else node
        return parsed("torch.scalar_tensor(N)", N=size)

    def visit_BoolOp(self, node: ast.BoolOp) -> Node:
        return joined_by(
            ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr(), map(self.truth, node.values)
        )

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Node:
        return negated(self.truth(node.operand)) if isinstance(node.op, ast.Not) else node

    def truth(self, node: Node) -> Node:
        return parsed("T != 0", T=self.tensor(node)) if self.is_number(node) else self.visit(node)


def as_tensors(test: Node, before: list[Node]) -> Node:
    """A test as a tensor. The statements before it show which variables are numbers."""
    known = {name: value for each in before for name, value in values_of(each)}
    ends = r"\.(shape|(size|item)\(\))$"
    numbers = {n for n, value in known.items() if is_size(value) or re.search(ends, ast.unparse(value))}
    return Unconverted(numbers).truth(copy.deepcopy(test))


def negated(test: Node) -> Node:
    """The tensor `not test`, without a double negation."""
    if not calls_method(test, "logical_not"):
        return parsed("torch.logical_not(T)", T=test)
    inner = test.args[0]
    is_truth = isinstance(inner, (ast.Compare, ast.BinOp)) or calls_method(inner, "any", "all")
    return inner if is_truth else parsed("T.bool()", T=inner)


def is_size(node: Node) -> bool:
    """Whether the node is a size: `x.shape[0]`, `x.size(0)`, `x.numel()`, `len(x)`."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    known = calls(node, "len") or calls_method(node, "numel")
    return known or (calls_method(node, "size") and bool(node.args))


def chosen(test: Node, first: Node, second: Node) -> Node:
    """Choose between two values, or between the elements of two tuples, with torch.where."""
    if isinstance(first, ast.Tuple) and isinstance(second, ast.Tuple):
        return ast.Tuple([chosen(test, *each) for each in zip(first.elts, second.elts)], ast.Load())
    return parsed("torch.where(C, A, B)", C=test, A=first, B=second)


def only(statements: list[Node], kind: Any) -> Any:
    return statements[0] if len(statements) == 1 and isinstance(statements[0], kind) else None


def of_branch(node: Node, context: Context) -> Block:
    """Rewrite an `if` with torch.where, if both sides return, or its sides only assign variables."""
    after = context.after
    if not isinstance(node, ast.If):
        return None
    test = as_tensors(node.test, context.before)
    first, second = only(node.body, ast.Return), only(node.orelse or after[-1:], ast.Return)
    if first is not None and second is not None and first.value and second.value:
        between = [] if node.orelse else after[:-1]
        if any(isinstance(each, ast.Return) for part in between for each in ast.walk(part)):
            return None
        early = first.value
        made: list[Node] = []
        if between:  # statements between may assign variables that the test and the early result use
            made = [assign("is_early", test), assign("early", early)]
            count = len(early.elts) if isinstance(early, ast.Tuple) else 0
            parts = in_tuple([f"early[{n}]" for n in range(count)])
            test, early = parsed("is_early"), parsed(parts if count else "early")
        made = [*made, *between, ast.Return(chosen(test, early, second.value))]
        return [*made, *after] if node.orelse else made
    return of_long_branch(node, test, after)


def of_long_branch(node: Node, test: Node, after: list[Node]) -> Block:
    """Rewrite an `if` with assignments: compute both sides, and choose each variable that is used later."""
    made: list[Node] = []
    sides = []
    for side, block in (("then", node.body), ("other", node.orelse)):
        names: dict[str, Any] = {}
        for statement in block:
            target = assigned(statement)
            if target is None:
                return None
            value = Renamed(names).visit(copy.deepcopy(value_of(statement)))
            if len(block) == 1:
                names[target] = value
                continue
            names[target] = f"{target}_{side}"
            made.append(assign(names[target], value))
        sides.append(names)
    loaded = {each.id for statement in after for each in ast.walk(statement) if isinstance(each, ast.Name)}
    for name in sorted({*sides[0], *sides[1]} & loaded):
        both = (side.get(name, name) for side in sides)
        first, second = (parsed(each) if isinstance(each, str) else each for each in both)
        made.append(assign(name, chosen(test, first, second)))
    return [*made, *after]


def assigned(node: Node) -> str | None:
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    target = node.target if isinstance(node, ast.AugAssign) else target
    return target.id if isinstance(target, ast.Name) else None


def values_of(node: Node) -> list[Any]:
    """List the variables that a statement assigns, with their values, even for `h, c = ...`."""
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    names = [each.id for each in getattr(target, "elts", ()) if isinstance(each, ast.Name)]
    if names and len(names) == len(target.elts):  # type: ignore[union-attr]
        return list(zip(names, getattr(node.value, "elts", [node.value] * len(names))))
    return [(name, value_of(node)) for name in (assigned(node),) if name]


def value_of(node: Node) -> Node:
    """The value that a statement assigns, for `x += y` the sum `x + y`."""
    target = getattr(node, "target", None)
    return ast.BinOp(parsed(ast.unparse(target)), node.op, node.value) if target is not None else node.value


def of_cache(node: Node, context: Context) -> Block:
    """Rewrite `if n != self.n: self.n = n; self.x = f(n)` to `x = f(n)`, computed in each call."""
    tested = ast.unparse(node.test) if isinstance(node, ast.If) and not node.orelse else ""
    if "self." not in tested or not all(isinstance(each, ast.Assign) for each in node.body):
        return None
    used = "\n".join(map(ast.unparse, context.after))
    codes = [ast.unparse(each.targets[0]) for each in node.body]
    names = {code: re.findall(r"\w+", code)[1] for code in codes if code.startswith("self.") and code in used}

    def change(each: Node, _context: Any) -> Node | None:
        code = ast.unparse(each)
        return ast.Name(names[code], each.ctx) if code in names else None

    set_here = [each for code, each in zip(codes, node.body) if code in names or code not in tested]
    return [Expressions(change).visit(copy.deepcopy(each)) for each in (*set_here, *context.after)]


def of_padding(node: Node, context: Context) -> Block:
    """Rewrite `if n < w: x = pad(x, (0, w - n))`: always pad by `w`. Right if only `w` elements are used."""
    test = getattr(node, "test", None)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    sides = [test.left, test.comparators[0]]
    most, least = sides[::-1] if isinstance(test.ops[0], (ast.Lt, ast.LtE)) else sides
    return _padded(node, context, ast.BinOp(most, ast.Sub(), least), most)


def of_remainder(node: Node, context: Context) -> Block:
    """Rewrite `if extra: x = pad(x, (0, k - extra))`, with `extra = n % k`, to pad by `(k - extra) % k`."""
    tested: Any = getattr(node, "test", None)
    tested = tested.left if isinstance(tested, ast.Compare) else tested
    known = {name: value for each in context.before for name, value in values_of(each)}
    rest = known.get(tested.id) if isinstance(tested, ast.Name) else tested
    if not isinstance(rest, ast.BinOp) or not isinstance(rest.op, ast.Mod):
        return None
    missing = ast.BinOp(rest.right, ast.Sub(), tested)
    made = _padded(node, context, missing, ast.BinOp(missing, ast.Mod(), rest.right))
    return made or _padded(node, context, tested, tested)  # pads by `-n % k` elements


def _padded(node: Node, context: Context, missing: Node, new: Node) -> Block:
    """The only statement of an `if`, with `new` in place of the expression `missing`."""
    body = only(node.body, ast.Assign) if isinstance(node, ast.If) and not node.orelse else None
    text = ast.unparse(missing)
    change = in_expression(lambda each, _context: new if ast.unparse(each) == text else None)
    return change(body, context) if body is not None else None


def of_loop(node: Node, context: Context) -> Block:
    """Rewrite a `while` or a `for` over a range as while_loop, if its body only assigns variables."""
    counted = isinstance(node, ast.For) and calls(node.iter, "range") and isinstance(node.target, ast.Name)
    if not (counted or isinstance(node, ast.While)) or node.orelse:
        return None
    stored = [name for each in node.body for name, _ in values_of(each)]
    if not all(map(values_of, node.body)):
        return None
    names = carried([node.test] if isinstance(node, ast.While) else [], node.body, context.after)
    body, step = written_out(node.body), "step"
    start, last = handed_on(names, context.before, node.body)
    if counted:
        step = node.target.id if node.target.id != "_" else step
        bounds = [without_conversion(each) for each in node.iter.args]
        if len(bounds) > 2 or step in stored:
            return None
        test = parsed(f"{step} < N", N=bounds[-1])
        first = ast.unparse(bounds[0]) if len(bounds) == 2 else "0"
        names, start, last = [step, *names], [f"torch.as_tensor({first})", *start], [f"{step} + 1", *last]
        body = [Selected(step).visit(each) for each in body]
    else:
        test = as_tensors(node.test, [])  # what a pass sets may be a tensor
    given = ", ".join(names)
    text = f"""
def going({given}):
    return T
def body({given}):
    return {in_tuple(last)}
({given},) = torch._higher_order_ops.while_loop(going, body, {in_tuple(start)})"""
    going, inner, call = ast.parse(text).body
    going.body[0].value = test  # type: ignore[attr-defined]
    inner.body[:0] = body  # type: ignore[attr-defined]
    return [going, inner, call, *context.after]


def written_out(body: list[Node]) -> list[Node]:
    """Copy a loop's body with `n = n + 1` for `n += 1`, which would write to the previous pass's tensor."""
    return [
        ast.Assign([each.target], value_of(each)) if isinstance(each, ast.AugAssign) else each
        for each in copy.deepcopy(body)
    ]


def handed_on(names: list[str], before: list[Node], body: list[Node]) -> Any:
    """Code for variables before a loop and after a pass, cloned where two may share a tensor."""
    kinds = {name: type(value) for part in before for name, value in values_of(part)}
    wrapped = {ast.Constant: "torch.as_tensor({})", ast.Name: "{}.clone()"}
    ends = {name: type(value) for part in body for name, value in values_of(part)}
    last = [f"{name}.clone()" if ends.get(name) is ast.Name else name for name in names]
    return [wrapped.get(kinds.get(name, object), "{}").format(name) for name in names], last


def of_slices(node: Node, context: Context) -> Block:
    """Rewrite a `for` over slices, with appends to lists, as scan, or as vmap if passes are independent."""
    slices = slices_of(node.iter, context) if isinstance(node, ast.For) and not node.orelse else None
    if slices is None:
        return None
    body, lists, joins = without_append(node.body, context.before)
    if not all(map(values_of, body)):
        return None
    target, own = node.target, {each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)}
    names = [name for name in carried([], body, context.after) if name not in {*own, *lists}]
    start, last = (in_tuple(each) for each in handed_on(names, context.before, body))
    made = written_out(body)
    for name in own if "torch.arange" in slices else ():
        made = [Selected(name).visit(each) for each in made]
    if not isinstance(target, ast.Name):
        made, target = [ast.Assign([target], parsed("each")), *made], ast.Name("each")
    clones = in_tuple([f"{name}.clone()" for name in lists])
    parts = in_tuple([f"{name}_parts" if name in joins else name for name in lists])
    text = f"""
def step(carry, {target.id}):
    {in_tuple(names)} = carry
    return {last}, {clones}
{in_tuple(names)}, {parts} = torch._higher_order_ops.scan(step, {start}, {slices})"""
    if not names:
        text = f"def step({target.id}):\n    return {clones}\n{parts} = torch.vmap(step)({slices})"
    inner, *call = ast.parse("\n".join((text, *joins.values()))).body
    inner.body[-1:-1] = made  # type: ignore[attr-defined]
    after = copy.deepcopy(context.after)
    for name in lists:
        in_use = Expressions(joined(name))
        after = [in_use.visit(each) for each in after]
    return [inner, *call, *after]


def without_append(body: list[Node], before: list[Node]) -> tuple[list[Node], list[str], dict[str, str]]:
    """Replace the first `x.append(y)` with `x = y` for lists that are empty before, and return their names.

    Do the same for `x = torch.cat([x, y], dim)`, and return code that joins the parts after the loop.
    """
    empty = {name for each in before for name, value in values_of(each) if ast.unparse(value) == "[]"}
    made: list[Node] = []
    lists: list[str] = []
    joins: dict[str, str] = {}
    for each in body:
        appends = isinstance(each, ast.Expr) and calls_method(each.value, "append")
        grown = grown_by(each)
        if grown is not None and len(re.findall(rf"\b{grown[0]}\b", "\n".join(map(ast.unparse, body)))) == 2:
            name, piece, dim = grown
            first, last = (dim, dim + 1) if dim >= 0 else (dim - 1, dim)
            stacked = f"{name}_parts.movedim(0, {first}).flatten({first}, {last})"
            joins[name] = f"{name} = torch.cat([{name}, {stacked}], {dim})"
            lists.append(name)
            each = assign(name, piece)
        elif appends and ast.unparse(each.value.func.value) in empty.difference(lists):
            lists.append(each.value.func.value.id)
            each = assign(lists[-1], each.value.args[0])
        made.append(each)
    return made, lists, joins


def grown_by(node: Node) -> tuple[str, Node, int] | None:
    """Variable, added part and dimension of `x = torch.cat([x, part], dim)`. None for others."""
    name, call = assigned(node), getattr(node, "value", node) or node
    joined = call.args[:1] if calls_method(call, "cat", "concat", "concatenate") else []
    parts = [part for each in joined for part in getattr(each, "elts", ())]
    if len(parts) != 2 or ast.unparse(parts[0]) != name:
        return None
    dims = [*call.args[1:], *(each.value for each in call.keywords)]
    text = ast.unparse(dims[0]) if dims else "0"
    return (name, parts[1], int(text)) if re.fullmatch(r"-?\d", text) else None


def in_tuple(parts: list[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def slices_of(node: Node, context: Context) -> str | None:
    """Code for the tensor or tuple of tensors whose slices a `for` takes. None if it takes none."""
    if calls(node, "range") and len(node.args) < 3:
        device = f", device={context.parameters[0]}.device" if context.parameters else ""
        bounds = ", ".join(ast.unparse(without_conversion(each)) for each in node.args)
        return f"torch.arange({bounds}{device})"
    if calls(node, "zip", "enumerate"):
        parts = [slices_of(each, context) for each in node.args]
        if calls(node, "enumerate"):
            parts.insert(0, slices_of(parsed("range(X.shape[0])", X=node.args[0]), context))
        return f"({', '.join(map(str, parts))})" if all(parts) else None
    if calls_method(node, "unbind"):
        dims = [*node.args, *(each.value for each in node.keywords)]
        return f"{ast.unparse(node.func.value)}.movedim({ast.unparse(dims[0]) if dims else 0}, 0)"
    of_tensor = isinstance(node, (ast.Name, ast.Subscript)) or calls_method(node, "transpose", "permute")
    return ast.unparse(node) if of_tensor else None


def joined(name: str) -> Change:
    """Rewrite code that joins the list `name`, which `scan` has already stacked in dimension 0."""
    forms = [("torch.stack(L)", "L"), ("torch.cat(L)", "L.flatten(0, 1)")]
    for dim in ("", "dim="):
        forms.append((f"torch.stack(L, {dim}D)", "L.movedim(0, D)"))
        forms.append((f"torch.cat(L, {dim}-1)", "L.movedim(0, -2).flatten(-2)"))
        forms.append((f"torch.cat(L, {dim}D)", "L.movedim(0, D).flatten(D, D + 1)"))
    return of_forms(*((old.replace("L", name), new.replace("L", name)) for old, new in forms))


def carried(tests: list[Node], body: list[Node], after: list[Node]) -> list[str]:
    """List variables that a pass of a loop sets and the next pass, or the code after the loop, uses."""
    found: dict[str, None] = {}
    stored: dict[str, None] = {}
    for part in [*tests, *body]:
        names = [each for each in ast.walk(part) if isinstance(each, ast.Name)]
        found.update((e.id, None) for e in names if isinstance(e.ctx, ast.Load) and e.id not in stored)
        if isinstance(part, ast.AugAssign):
            found.update({name: None for name in (assigned(part),) if name and name not in stored})
        stored.update((e.id, None) for e in names if isinstance(e.ctx, ast.Store))
    used = {each.id for part in after for each in ast.walk(part) if isinstance(each, ast.Name)}
    return [name for name in stored if name in found or name in used]


class Selected(ast.NodeTransformer):
    """Writes `x[:, step]` with `index_select`, because `step` is a tensor."""

    def __init__(self, step: str) -> None:
        self.step = step

    def visit_Subscript(self, node: ast.Subscript) -> Node:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        codes = list(map(ast.unparse, parts))
        if codes.count(self.step) != 1 or codes.count(":") != len(codes) - 1:
            return self.generic_visit(node)
        at = codes.index(self.step)
        text = f"V.index_select({at}, {self.step}.reshape(1)).squeeze({at})"
        return parsed(text, V=node.value)


def of_assert(node: Node, context: Context) -> Block:
    """Rewrite an assertion, or an `if` that only raises, with the message if that is a plain text."""
    raises = isinstance(node, ast.If) and not node.orelse and only(node.body, ast.Raise) is not None
    if not raises and not isinstance(node, ast.Assert):
        return None
    test = as_tensors(node.test, context.before)
    test = negated(test) if raises else test
    given, told = getattr(node, "msg", None), "unexpected" if raises else "check failed"
    message = given if isinstance(given, ast.Constant) else ast.Constant(f"{told}: {ast.unparse(node.test)}")
    return [ast.Expr(parsed("torch._assert_async(T, M)", T=test, M=message)), *context.after]


def without_check(node: Node, context: Context, ends: Any = (ast.Continue, ast.Return)) -> Block:
    """Drop `if i.numel() == 0: continue` (or `return`), because operators also accept an empty tensor."""
    if not isinstance(node, ast.If) or node.orelse:
        return None
    is_of_size = any(is_size(each) or calls_method(each, "any") for each in ast.walk(node.test))
    return [*context.after] if is_of_size and isinstance(node.body[-1], ends) else None


@in_expression
def unfiltered(node: Node, _context: Context) -> Node | None:
    """Drop the filter of `[f(x) for x in parts if len(x) > 0]`, as operators accept an empty part."""
    fits = isinstance(node, (ast.ListComp, ast.GeneratorExp)) and any(
        is_size(part) for each in node.generators for test in each.ifs for part in ast.walk(test)
    )
    for each in node.generators if fits else ():
        each.ifs = []
    return node if fits else None


def of_try(node: Node, context: Context) -> Block:
    return [*node.body, *context.after] if isinstance(node, ast.Try) and not node.finalbody else None


@in_expression
def either(node: Node, context: Context) -> Node | None:
    fits = isinstance(node, ast.IfExp)
    return chosen(as_tensors(node.test, context.before), node.body, node.orelse) if fits else None


def picked(statement: Node, context: Context) -> Block:
    """Rewrite `self.experts[k.item()](x)` and `self.heads[NAMES[k.item()]](x)`: compute all, and pick one.

    A variable for the number or the element is replaced with its value, if it is used once.
    """
    numbers = {name: value for each in context.before for name, value in values_of(each)}

    def each_of(node: Node) -> Any:
        """The expression with the number replaced by `n`, the container, and the number's tensor."""
        if isinstance(node, ast.Subscript):
            inner = each_of(node.slice)
            if inner is not None:
                return ast.Subscript(node.value, inner[0], ast.Load()), *inner[1:]
            index: Node = numbers.get(node.slice.id) if isinstance(node.slice, ast.Name) else node.slice
            texts = calls(index, "str")
            number = index.args[0] if texts and index.args else index
            tensor = without_conversion(number)
            key = parsed("str(n)" if texts else "n")
            return (parsed("M[K]", M=node.value, K=key), node.value, tensor) if tensor is not number else None
        inner = each_of(node.func) if isinstance(node, ast.Call) else None
        return (ast.Call(inner[0], node.args, node.keywords), *inner[1:]) if inner is not None else None

    def change(node: Node, _context: Any) -> Node | None:
        found = each_of(node)
        of_number = "torch.as_tensor(E, device=K.device)"  # for a table of numbers
        each = "E" if isinstance(node, ast.Call) else of_number
        text = f"torch.stack([{each} for n in range(len(M))]).index_select(0, K.reshape(1))[0]"
        return parsed(text, E=found[0], M=found[1], K=found[2]) if found is not None else None

    name, after = assigned(statement) or "", context.after
    uses = [use for use in after if name in {e.id for e in ast.walk(use) if isinstance(e, ast.Name)}]
    value = statement.value if name and len(uses) == 1 else None
    if value is not None and (each_of(value) is not None or without_conversion(value) is not value):
        used = after.index(uses[0])
        whole = Renamed({name: value}).visit(copy.deepcopy(uses[0]))
        rest = replace(context, after=after[used + 1 :])
        made = in_expression(change)(whole, rest)
        return [*after[:used], *made] if made is not None else None
    return in_expression(change)(statement, context)


def counted(loop: Node) -> Node:
    """Rewrite `while x.shape[1] < n and ...: x = cat([x, y], 1)` as at most n passes with the same test."""
    sized: Any = loop.test.values[0] if isinstance(getattr(loop.test, "op", None), ast.And) else None
    if not is_size(getattr(sized, "left", None)) or not isinstance(sized.ops[0], ast.Lt):
        return loop
    passes = parsed("range(N - S)", N=sized.comparators[0], S=sized.left)
    leave = ast.If(parsed("not T", T=loop.test), [ast.Break()], [])
    return ast.For(ast.Name("_", ast.Store()), passes, [leave, *loop.body], [])


def of_exit(loop: Node, context: Context) -> Block:
    """Rewrite a loop with `if ...: break`. All passes run, but those after the exit change nothing."""
    loop = counted(loop) if isinstance(loop, ast.While) else loop
    exits = [each for each in getattr(loop, "body", ()) if isinstance(each, ast.If)]
    if not isinstance(loop, ast.For) or loop.orelse or not exits:
        return None
    known = {name for each in context.before for name, _ in values_of(each)} | set(context.parameters)
    used = set(carried([], loop.body, context.after))
    first_set = [name for each in loop.body for name in (assigned(each),) if name in used - known]
    parts = [_until_exit(each, used, known) for each in loop.body]
    device = f", device={context.parameters[0]}.device" if context.parameters else ""
    start, end = [f"going = torch.ones((), dtype=torch.bool{device})"], []
    start += [f"{name} = None" for name in first_set]
    for name, _, dim in filter(None, map(grown_by, loop.body)):
        start.append(f"{name}_size = torch.tensor({name}.shape[{dim}]{device})")
        end.append(CUT.format(name=name, dim=dim))
    first, last = (ast.parse("\n".join(lines)).body for lines in (start, end))
    body = [each for part in parts for each in part]
    return [*first, ast.For(loop.target, loop.iter, body, []), *last, *context.after] if all(parts) else None


CUT = """size = {name}_size.item()
torch._check(size >= 0)
torch._check(size <= {name}.shape[{dim}])
{name} = {name}.narrow({dim}, 0, size)"""


def _until_exit(node: Node, used: Any, known: Any) -> list[Node]:
    """Statements that change variables only while `going`, or, for the exit, one that sets `going`.

    Empty if the statement does not fit. `used`: variables needed after a pass; `known`: set before the loop.
    """
    if isinstance(node, ast.If):
        test = parsed("going & T", T=negated(as_tensors(node.test, [])))
        leaves = only(node.body, ast.Break) is not None and not node.orelse
        return [assign("going", test)] if leaves else []
    if (grown := grown_by(node)) is not None:  # what grows after the exit is cut off at the end
        name, _, dim = grown
        text = f"{name}_size = torch.where(going, {name}.shape[{dim}], {name}_size)"
        return [node, *ast.parse(text).body]
    target: Any = node.target if isinstance(node, ast.AugAssign) else getattr(node, "targets", [None])[0]
    stored = [each for each in ast.walk(target) if isinstance(each, ast.Name)] if target is not None else []
    names = {each.id for each in stored if isinstance(each.ctx, ast.Store)} & used
    if isinstance(target, (ast.Name, ast.Tuple)) and not names:
        return [node]
    if isinstance(node, ast.Assign) and isinstance(target, ast.Name) and not names <= known:
        text = f"V if {target.id} is None else torch.where(going, V, {target.id})"
        return [assign(target.id, parsed(text, V=node.value))]
    if not isinstance(target, (ast.Name, ast.Tuple, ast.Subscript)) or not names <= known:
        return []
    if isinstance(target, ast.Tuple):
        news = {name: f"{name}_next" for name in sorted(names)}
        whole = ast.Assign([Renamed(news).visit(target)], node.value)
        texts = "".join(f"{name} = torch.where(going, {new}, {name})\n" for name, new in news.items())
        return [whole, *ast.parse(texts).body]
    old = parsed(ast.unparse(target))
    return [ast.Assign([target], parsed("torch.where(going, V, O)", V=value_of(node), O=old))]


@in_expression
def own_device(node: Node, context: Context) -> Node | None:
    """Rewrite `x.cuda()`, `x.to("cuda")` and `device="cuda"` with the device of the first input."""
    own = parsed(f"{context.parameters[0]}.device") if context.parameters else None
    if calls_method(node, "cuda") and not node.args:
        return parsed("X.to(D)", X=node.func.value, D=own) if own else None
    written = node.args[0] if calls_method(node, "device") and node.args else node
    value = str(written.value) if isinstance(written, ast.Constant) else ""
    return own if re.fullmatch(r"(cuda|cpu|mps|xpu)(:\d+)?", value) else None


_SHAPED = ("view", "reshape", "expand", "zeros", "ones", "empty", "full")


@in_expression
def own_size(node: Node, context: Context) -> Node | None:
    """Rewrite `x.view(8, -1)` or `torch.zeros(8, 4)` with the input's size in place of the batch size 8."""
    if not calls_method(node, *_SHAPED) or not node.args or not context.parameters:
        return None
    new = copy.deepcopy(node)
    sizes = getattr(new.args[0], "elts", new.args)
    if not any(type(value) is int and value > 1 for value in context.values(sizes[0] if sizes else None)):
        return None
    owner = node.func.value
    named = isinstance(owner, ast.Name) and owner.id != "torch"
    sizes[0] = parsed("X.shape[0]", X=owner if named else parsed(context.parameters[0]))
    return new


def no_numbers(statement: Node, context: Context) -> Block:
    """Turn numbers into tensors in a tuple or dict that is returned, or that a `while_loop` carries.

    Leave out texts, and lists of texts, which a package cannot return.
    """
    new = copy.deepcopy(statement)
    nodes: list[Any] = list(ast.walk(new))
    loops = [each for each in nodes if calls_method(each, "while_loop") or calls(each, "while_loop")]
    returned = [new.value] if isinstance(new, ast.Return) else []
    for whole in (*(each.args[2] for each in loops if len(each.args) > 2), *returned):
        parts = getattr(whole, "values" if isinstance(whole, ast.Dict) else "elts", [])
        for place, each in reversed(list(enumerate(parts))):
            if is_text(each, context):
                del parts[place]
                if isinstance(whole, ast.Dict):
                    del whole.keys[place]
            elif any(isinstance(value, (int, float)) for value in context.values(each)):
                parts[place] = parsed("torch.tensor(N)", N=each)
    return [new, *context.after] if ast.dump(new) != ast.dump(statement) else None


def is_text(node: Node, context: Context) -> bool:
    """Whether the node is a text or a list of texts."""
    values = [context.values(each) for each in getattr(node, "elts", [node])]
    return isinstance(node, ast.JoinedStr) or any(isinstance(each, str) for each in tree_leaves(values))


def of_parts(node: Node, context: Context) -> Node | None:
    """Write the numbers in `torch.where(c, z, 1j)` as tensors: a compile has no complex numbers (2.13)."""
    if not calls_method(node, "where", "masked_fill"):
        return None
    visit = Expressions(of_parts, context).visit
    return ast.Call(visit(node.func), [complex_tensor(visit(each)) for each in node.args], node.keywords)


def complex_tensor(node: Node) -> Node:
    """Turn a number into code for a tensor. Leave other code."""
    with contextlib.suppress(ValueError, TypeError):
        value = complex(ast.literal_eval(node))
        parts = (f"torch.tensor({part + 0.0})" for part in (value.real, value.imag))
        return parsed(f"torch.complex({', '.join(parts)})")
    return node


CLASSES = ("num_classes", "n_classes", "classes", "num_labels")


@in_expression
def one_hot(node: Node, context: Context) -> Node | None:
    """Rewrite `F.one_hot(i)` with the number of classes, if the module has it as an attribute."""
    if not calls_method(node, "one_hot") or len(node.args) != 1 or node.keywords:
        return None
    names = [n for n in CLASSES if isinstance(getattr(context.module, n, None), int)]
    return parsed(f"F(X, self.{names[0]})", F=node.func, X=node.args[0]) if names else None


class Padded(ast.NodeTransformer):
    """Runs a recurrent layer on the padded tensor instead of a packed sequence, and masks its outputs."""

    def __init__(self) -> None:
        self.lengths: Node = None
        self.batch = 1  # the dimension of the batch
        self.packed: list[str] = []

    def visit_Assign(self, node: ast.Assign) -> Any:
        """Take the last state from the outputs, because the layer returns the state after the padding."""
        packs = "pack_padded_sequence" in ast.unparse(node.value)
        given = [ast.unparse(each) for each in getattr(node.value, "args", ())]
        self.generic_visit(node)
        target: Any = node.targets[0]
        if packs and isinstance(target, ast.Name):
            self.packed.append(target.id)
        if not set(given) & set(self.packed) or len(getattr(target, "elts", ())) != 2:
            return node
        outputs, state = target.elts
        state = state.elts[0] if isinstance(state, ast.Tuple) else state
        if not isinstance(state, ast.Name) or state.id == "_":
            return node
        target.elts[0] = outputs = ast.Name("outputs" if outputs.id == "_" else outputs.id, ast.Store())
        at = f"torch.arange(O.shape[{self.batch}], device=O.device)"
        places = [at, "L.to(O.device) - 1"] if self.batch == 0 else ["L.to(O.device) - 1", at]
        last = parsed(f"O[{', '.join(places)}].unsqueeze(0)", O=parsed(outputs.id), L=self.lengths)
        return [node, assign(state.id, last)]

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        name = ast.unparse(node.func).rpartition(".")[2]
        if name == "pack_padded_sequence" and len(node.args) > 1:
            given = [*node.args[2:3], *(each.value for each in node.keywords if each.arg == "batch_first")]
            self.batch = 0 if [ast.unparse(each) for each in given] == ["True"] else 1
            self.lengths = node.args[1]
            while calls_method(self.lengths, "cpu", "to", "tolist"):
                self.lengths = self.lengths.func.value
            return node.args[0]
        if name != "pad_packed_sequence" or self.lengths is None:
            return node
        steps = f"torch.arange(H.shape[{1 - self.batch}], device=H.device)"
        mask = "S < L.to(H.device)[:, None]" if self.batch == 0 else "S[:, None] < L.to(H.device)"
        text = f"(H * ({mask.replace('S', steps)}).unsqueeze(-1), L)"
        return parsed(text, H=node.args[0], L=self.lengths)


class InBuffer(ast.NodeTransformer):
    """Turns an attribute into a buffer: `self.x = y` becomes `self.x.copy_(y)`.

    The buffer of a number has two elements, because a compile treats one with a single element as a constant
    (torch 2.13): `self.n += 1` becomes `self.n.fill_(self.n[0] + 1)`.
    """

    def __init__(self, name: str, first: Any) -> None:
        self.name = f"self.{name}"
        self.number = isinstance(first, (int, float))
        start = f"torch.tensor([{first}] * 2)" if self.number else "first_value"
        self.made = f'self.register_buffer("{name}", {start})  # in __init__'

    def visit_AugAssign(self, node: ast.AugAssign) -> Node:
        if not self.number or ast.unparse(node.target) != self.name:
            return self.generic_visit(node)
        return self.visit(ast.copy_location(ast.Assign([node.target], value_of(node)), node))

    def visit_Assign(self, node: ast.Assign) -> Node:
        node.value = self.visit(node.value)
        if [ast.unparse(each) for each in node.targets] != [self.name]:
            return node
        change = "fill_" if self.number else "copy_"
        return ast.copy_location(ast.Expr(parsed(f"{self.name}.{change}(V)", V=node.value)), node)

    def visit_Attribute(self, node: ast.Attribute) -> Node:
        if not self.number or not isinstance(node.ctx, ast.Load) or ast.unparse(node) != self.name:
            return self.generic_visit(node)
        return parsed("N[0]", N=node)


NUMPY = ("np", "numpy")
# Functions of NumPy that torch has under another name. Torch has most others under the same name.
TORCH = {"concatenate": "cat", "clip": "clamp", "power": "pow", "max": "amax", "min": "amin"}
TORCH.update({"absolute": "abs", "expand_dims": "unsqueeze", "array": "as_tensor", "asarray": "as_tensor"})


class InTorch(ast.NodeTransformer):
    """Computes with torch what is computed with NumPy from tensors or sizes. Leaves constants as they are."""

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        name = TORCH.get(node.attr, node.attr)
        known = ast.unparse(node.value) in NUMPY and not isinstance(getattr(torch, name, 0.0), float)
        return parsed(f"torch.{name}") if known else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        owner, _, name = ast.unparse(node.func).rpartition(".")
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        if names <= {*NUMPY, "math", "self", "torch"} or (owner in NUMPY and not node.args):
            return node  # a constant, or a call with only keywords, which torch names otherwise
        self.generic_visit(node)
        of_size = owner in NUMPY and is_size(node.args[0])
        if owner in NUMPY and name in LIMITS and isinstance(node.args[1], ast.Constant):
            return parsed(f"torch.clamp(X, {LIMITS[name]}=K)", X=node.args[0], K=node.args[1])
        if owner in NUMPY and name == "sqrt" and (of_size or isinstance(node.args[0], ast.Name)):
            return parsed("N ** 0.5", N=node.args[0])  # a tensor or a size
        if of_size:
            node.args = [parsed("torch.scalar_tensor(N)", N=node.args[0])]
        if name == "numpy" or (owner, name) == ("torch", "from_numpy"):
            return node.args[0] if node.args else node.func.value  # type: ignore[attr-defined]
        return parsed("X.to(D)", X=node.func.value, D=node.args[0]) if name == "astype" else node  # type: ignore[attr-defined]


LIMITS = {"maximum": "min", "minimum": "max"}
BOTH = "both sides are computed; torch.cond computes one"
ANY = f"{VALUE}|{SIZE}"
UNROLLED = "unrolled loop"  # stands for an error, to rewrite the loops of an export that passed


def as_tuple(node: Node, context: Context) -> Block:
    """A plain tuple: a package cannot have the types that `torch.topk` and others return."""
    if not isinstance(node, ast.Return) or node.value is None:
        return None
    return [ast.Return(parsed("tuple(X)", X=node.value)), *context.after]


WRITES = ("print", "debug", "info", "warning", "error", "exception", "log", "write", "add_scalar")


def only_outside(node: Node, context: Context) -> Block:
    """Skip `print(f"{x.max():.2f}")` in an export, where tensors have no values."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not calls(call, *WRITES) and not calls_method(call, *WRITES):
        return None
    return [ast.If(parsed("not torch.compiler.is_exporting()"), [node], []), *context.after]


QUANTIZED = "torch.quantize_per_tensor(X, S, Z, torch.{}).dequantize()"
COPY = "torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, X)"
ROWS = "T[torch.arange(X.shape[0], device=X.device)]"
REWRITES = [
    Rewrite("padding", SIZE, of_padding, "pad without the test", "longer inputs are padded and cut, too"),
    Rewrite("padding to a multiple", ANY, of_remainder, "pad without the test"),
    Rewrite("cached size", SIZE, of_cache, "compute it in each call", "a package has no such cache"),
    Rewrite("branch", ANY, of_branch, "choose with torch.where", BOTH),
    Rewrite("conditional expression", ANY, either, "choose with torch.where", BOTH),
    Rewrite("check if empty", VALUE, without_check, "leave out the check", "empty tensors pass, too"),
    Rewrite("filter", VALUE, unfiltered, "leave out the test of the size", "empty parts are used, too"),
    Rewrite("check of a size", SIZE, partial(without_check, ends=ast.Raise), "check the size in the caller"),
    Rewrite("loop", f"{ANY}|{UNROLLED}", of_loop, "loop with while_loop"),
    Rewrite(
        "loop over slices",
        f"{ANY}|{UNROLLED}",
        of_slices,
        "compute all passes with scan, or vmap if they are alone",
    ),
    Rewrite("assertion", VALUE, of_assert, "assert with torch._assert_async", "it raises at run time"),
    Rewrite(
        "number of a tensor",
        f"{VALUE}|item",
        like(
            *((f"{kind}({old})", "X.item()") for kind in ("int", "float") for old in ("X.item()", "X")),
            *((f"{name}(X.tolist())", f"X.{name}().item()") for name in ("max", "min", "sum")),
        ),
        "take the number with .item()",
        stage="export or compile",
    ),
    Rewrite(
        "deep copy",
        "deepcopy|Cannot access data pointer",
        like(*((f"{name}(X)", COPY) for name in ("copy.deepcopy", "deepcopy"))),
        "copy only the tensors",
    ),
    Rewrite("truth of a tensor", VALUE, like(("bool(X.item())", "X"), ("bool(X)", "X")), "keep the tensor"),
    Rewrite("choice of a module", VALUE, picked, "compute all and select one", "all are computed"),
    Rewrite(
        "early exit",
        VALUE,
        of_exit,
        "run all passes, and keep what the pass before the exit gave",
        "all passes are computed",
        of=(ast.For, ast.While),
    ),
    Rewrite(
        "one-hot",
        f"{VALUE}|one_hot",
        one_hot,
        "give the number of classes",
        "all classes get a column, also those above the largest one of a batch",
        exact=False,
    ),
    Rewrite(
        "tensor of tensors",
        f"not allocated yet|{VALUE}",
        like(("torch.tensor(L)", "torch.stack(L)"), ("torch.as_tensor(L)", "torch.stack(L)")),
        "join with torch.stack",
    ),
    Rewrite(
        "fixed table",
        SIZE,
        like(
            *((f"X {op} self.T", f"X {op} {ROWS}") for op in "+-*"),
            *((f"self.T {op} X", f"{ROWS} {op} X") for op in "+-*"),
        ),
        "take as many rows as the input has",
        "an input with more rows than the table fails. The table needs enough rows for the largest input",
    ),
    Rewrite("written batch", SIZE, own_size, "use the size of the input instead of the number"),
    Rewrite(
        "math on a size",
        f"{SIZE}|_sym_|SpecViolation",
        like(
            ("int(math.sqrt(N))", "torch.sym_int(N ** 0.5)"),
            ("math.sqrt(N)", "N ** 0.5"),
            ("math.isqrt(N)", "torch.sym_int(N ** 0.5)"),
            ("math.ceil(N / K)", "-(-N // K)"),
            ("math.log2(N)", "torch.log2(torch.scalar_tensor(N))"),
            ("math.log(N)", "torch.log(torch.scalar_tensor(N))"),
        ),
        "use operators on symbols",
    ),
    Rewrite(
        "integer of a size",
        SIZE,
        like(("int(N)", "torch.sym_int(N)")),
        "keep the size symbolic with torch.sym_int",
    ),
    Rewrite(
        "part of a size",
        r"trunc\(|floor\(|//",
        like(
            ("X[:K]", "X[torch.arange(K, device=X.device)]"),
            ("X[:, :K]", "X[:, torch.arange(K, device=X.device)]"),
            ("X[:, :, :K]", "X[:, :, torch.arange(K, device=X.device)]"),
        ),
        "take that part by an index",
        "it is a copy, and an index beyond the end fails",
    ),
    Rewrite("written device", "same device|with CUDA|NVIDIA driver", own_device, "use the input's device"),
    Rewrite("try", f"{ANY}|fake tensor call", of_try, "leave out try and except"),
    Rewrite(
        "least squares",
        "linalg_lstsq",
        like(("torch.linalg.lstsq(A, B).solution", "torch.linalg.pinv(A) @ B")),
        "multiply by the pseudo-inverse",
    ),
    Rewrite(
        "log line",
        f"__format__|{VALUE}",
        only_outside,
        "write the line only outside of the export",
        "a package writes no such line",
    ),
    Rewrite(
        "open slice",
        "None. was not declared",  # the generated code lacks the start of x[:n] (2.8-2.15)
        like(*((f"X[{part}:K]", f"X[{part}0:K]") for part in ("", ":, ", ":, :, ", "..., "))),
        "write the start",
        stage="compile",
    ),
    Rewrite(
        "complex number", r"AssertionError: $", in_expression(of_parts), "use complex tensors", "", "compile"
    ),
    Rewrite(
        "number in a tuple",
        r"FakeTensorUpdater|\[TensorBox",
        no_numbers,
        "use only tensors",
        "the caller adds texts",
        "compile",
    ),
    Rewrite(
        "named result",
        r"serialization name for .*torch\.return_types",
        as_tuple,
        "return a tuple",
        "",
        "compile",
    ),
    Rewrite(
        "quantized and back",
        r"torch\.qint8|torch\.quint8",
        like(
            (QUANTIZED.format("qint8"), "(((X / S).round() + Z).clamp(-128, 127) - Z) * S"),
            (QUANTIZED.format("quint8"), "(((X / S).round() + Z).clamp(0, 255) - Z) * S"),
        ),
        "round and clamp in floating point",
        "a value halfway between two steps may go to the other one",
        "compile",
    ),
]


# Rows that change whole functions. Here, `made` is a class of transformers.
WHOLE = [
    Rewrite(
        "packed sequence",
        r"argument 'size' failed to unpack|pack_padded_sequence|pad_packed_sequence",
        Padded,  # type: ignore[arg-type]
        "run the layer on the padded tensor, and mask its outputs with the lengths",
        "the last state is that of the last layer",
    ),
    Rewrite("NumPy", r"numpy\(\) is not supported|ufunc|Num[pP]y", InTorch, "compute it with torch"),  # type: ignore[arg-type]
]


def fitting(text: str, stage: str, rows: list[Rewrite] = REWRITES) -> list[Rewrite]:
    """The rows that match the stage and the text of the error."""
    return [each for each in rows if stage in each.stage and re.search(each.text, text)]
