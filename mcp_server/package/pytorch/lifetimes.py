"""When the variables of a wrapper are last used and written, and which memory a launch may make anew."""

from __future__ import annotations

from typing import TypeAlias

from mcp_server.package.launches import Argument, Buffer, Launch, Transfer
from mcp_server.package.terms.blocks import Block
from mcp_server.package.wrapper import Wrapper, grouped

Node: TypeAlias = Launch | Transfer


class Lifetimes:
    """Of the variables of a run, by the offsets of its statements."""

    def __init__(self, wrapper: Wrapper) -> None:
        self.buffers, run = wrapper.buffers, wrapper.run
        nodes: list[Node] = sorted([*run.launches, *run.transfers], key=lambda each: each.start)
        self._last_use = {name: node.start for node in nodes for name in variables(node)}
        self._last_use |= dict.fromkeys(run.outputs.values(), len(wrapper.text))  # used at the end
        self._last_write = {
            self.buffers[name].storage: node.start
            for node in nodes
            for name in variables(node, written=True)
            if name in self.buffers
        }
        self._families = grouped((each.storage, each) for each in self.buffers.values())

    def may_be_new(self, argument: Argument, launch: Launch) -> bool:
        """Whether nobody reads the memory behind an argument under another name after this launch."""
        buffer = self.buffers.get(argument.target or "")
        if buffer is None or argument.view is not None or buffer.sizes is None:
            return False
        if buffer.kind not in ("allocated", "moved", "view", "alias", "assigned"):
            return False
        if any(buffer.line < block.line for block in branches(launch)):
            return False  # the other branch and what follows know it by its name
        family = self._families[buffer.storage]
        if any(each.kind in ("input", "constant", "pool") for each in family):
            return False
        for other in family:
            if (
                other.name != buffer.name
                and not self._comes_from(other, buffer.name)
                and self._last_use.get(other.name, 0) > launch.start
            ):
                return False
        same = [each for each in launch.arguments if each.target and each.target != argument.target]
        return not any(
            self.buffers[each.target].storage == buffer.storage
            for each in same
            if each.target in self.buffers and each.target
        )

    def is_read_after(self, name: str, launch: Launch) -> bool:
        """Whether anything uses a tensor after the launch that makes it, under any name."""
        buffer = self.buffers.get(name)
        family = self._families[buffer.storage] if buffer is not None else ()
        return any(
            self._last_use.get(each, 0) > launch.start for each in (name, *(one.name for one in family))
        )

    def is_written_after(self, name: str, launch: Launch) -> bool:
        """Whether a later statement writes to the memory of a tensor."""
        return self._last_write.get(self.buffers[name].storage, -1) > launch.start

    def _comes_from(self, buffer: Buffer, name: str) -> bool:
        """Whether a variable is another name, or a view, of that one."""
        seen: set[str] = set()
        while buffer.base is not None and buffer.base not in seen:
            if buffer.base == name:
                return True
            seen.add(buffer.base)
            buffer = self.buffers[buffer.base]
        return False


def branches(node: Node) -> list[Block]:
    """The blocks around a statement in which it need not run once."""
    return [each for each in node.context if each.kind in ("if", "else", "loop")]


def variables(node: Node, *, written: bool = False) -> tuple[str, ...]:
    """The variables that a statement uses, or those that it writes."""
    if isinstance(node, Launch):
        return node.writes if written else (*node.reads, *node.writes)
    return (node.writes,) if written or node.reads is None else (node.reads, node.writes)
