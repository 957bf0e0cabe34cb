"""Operators of a kernel as expressions of torch, over values that have been written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mcp_server.package.pytorch.axes import Axes, Axis, NotRead
from mcp_server.package.pytorch.expressions import Expressions, Value, is_number
from mcp_server.package.pytorch.memory import Memory
from mcp_server.package.pytorch.whole import Whole
from mcp_server.package.terms.evaluate import MATH
from mcp_server.package.terms.term import SIGNS, is_float, promoted

INFIX = {op: sign for op, (sign, _) in SIGNS.items() if op not in ("truncdiv", "remainder")}
INFIX |= {"and": "&", "or": "|"}
COMPARED = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
TWO = {"pow": "pow", "atan2": "atan2", "hypot": "hypot", "copysign": "copysign", "remainder": "fmod"}
METHODS = MATH.keys() - TWO.keys() | {"round", "square"}


class Operators(Expressions):
    """Writes operators. `_sums` has the text, dimensions and size of each sum, of which a mean is made."""

    def __init__(self, axes: Axes, memory: Memory) -> None:
        super().__init__(axes, memory)
        self._sums: dict[str, tuple[str, str, Whole]] = {}

    def operated(self, op: str, values: list[Value], dtype: str) -> Value:
        """The value of an operator of these operands. Raises `NotRead`."""
        if op == "cast":
            return self._converted(values[0], dtype)
        if all(each.scalar for each in values):
            values[0] = self.as_tensor(values[0], promoted(*(each.dtype for each in values)))
        axes = self.axes.ordered(axis for each in values for axis in each.axes)
        if op in ("and", "or"):
            values = [self.tested(each) for each in values]
        if op in INFIX and not (op == "div" and not is_float(dtype)):
            return self._infix(op, values, axes, dtype)
        if op in ("div", "truncdiv"):
            left, right = (self.aligned(each, axes) for each in values)
            kind = promoted(*(each.dtype for each in values if not each.scalar))
            text = f"torch.div({left}, {right}, rounding_mode='trunc')"
            return self.cast(Value(text, axes, kind), dtype)
        if op.startswith("rand"):
            given = [self.aligned(each, axes, alone=True) for each in values]
            name, where = op.removesuffix("_cpu"), "" if op.endswith("_cpu") else ", gpu=True"
            return Value(f"{name}({', '.join(given)}{where})", axes, dtype)
        if op in ("maximum", "minimum"):
            return self._extreme(op, values, axes, dtype)
        first = values[0]
        if op == "neg":
            return self.cast(Value(f"-{first.operand}", axes, first.dtype, is_atom=False), dtype)
        if op == "not":
            return Value(f"~{self.tested(first).operand}", axes, "bool", is_atom=False)
        if op == "bitnot":
            return Value(f"~{first.operand}", axes, first.dtype, is_atom=False)
        if op in METHODS:
            if is_float(dtype) and not is_float(first.dtype):
                first = self.cast(first, dtype)
            kind = "bool" if op in ("isnan", "isinf", "signbit") else first.dtype
            name = f"{first.operand}.{op}()" if op != "signbit" else f"torch.signbit({first.text})"
            return self.cast(Value(name, axes, kind), dtype)
        if op in TWO:
            left, right = (self.aligned(each, axes) for each in values)
            kind = promoted(*(each.dtype for each in values if not each.scalar))
            return self.cast(Value(f"torch.{TWO[op]}({left}, {right})", axes, kind), dtype)
        raise NotRead(f"the operator {op}")

    def _converted(self, value: Value, dtype: str) -> Value:
        if value.scalar:
            if dtype == "bool" or (is_float(value.dtype) and not is_float(dtype)):
                value = self.as_tensor(value)
            else:
                text = f"float({value.text})" if is_float(dtype) and not is_float(value.dtype) else value.text
                return replace(value, text=text, dtype=dtype)
        return self.tested(value) if dtype == "bool" else self.cast(value, dtype)

    def _infix(self, op: str, values: list[Value], axes: tuple[Axis, ...], dtype: str) -> Value:
        if op in ("add", "sub", "mul", "div") and dtype != "bool":
            values = [self.cast(each, dtype) if each.dtype == "bool" else each for each in values]
        if op == "div" and (mean := self._mean(values)) is not None:
            return mean
        left, right = (self.aligned(each, axes) for each in values)
        kind = promoted(*(each.dtype for each in values if not each.scalar))
        fraction = any(each.scalar and is_float(each.dtype) for each in values)
        if op in COMPARED or op in ("and", "or"):
            kind = "bool"
        elif (fraction or op == "div") and not is_float(kind):
            kind = "float32"
        return self.cast(Value(f"{left} {INFIX[op]} {right}", axes, kind, is_atom=False), dtype)

    def _mean(self, values: Sequence[Value]) -> Value | None:
        """A sum divided by how many it has."""
        total, count = values
        if total.text not in self._sums or not count.scalar:
            return None
        text, at, size = self._sums[total.text]
        told = count.text.removeprefix("float(").removesuffix(")")
        same = told == str(size) or (is_number(told) and float(told) == size.number)
        return Value(f"{text}.mean({at})", total.axes, total.dtype) if same else None

    def _extreme(self, op: str, values: list[Value], axes: tuple[Axis, ...], dtype: str) -> Value:
        if values[0].scalar:
            values = values[::-1]
        first, second = values
        if second.scalar:
            if is_float(second.dtype) and not is_float(first.dtype):
                first = self.cast(first, dtype)
            if op == "maximum" and float(second.text or 0) == 0 if is_number(second.text) else False:
                return self.cast(Value(f"{first.operand}.relu()", axes, first.dtype), dtype)
            end = "min" if op == "maximum" else "max"
            return self.cast(Value(f"{first.operand}.clamp({end}={second.text})", axes, first.dtype), dtype)
        left, right = (self.aligned(self.cast(each, dtype), axes) for each in values)
        return Value(f"torch.{op}({left}, {right})", axes, dtype)
