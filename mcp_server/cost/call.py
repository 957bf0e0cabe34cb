"""`--symptom slow`: finds where the time of a call goes and which change saves it, timed in pairs."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from mcp_server.cost.signals import LEAST_WIN, Found, Lever, Win, loss, no_loss, signals_of, told
from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Command, child_environment
from mcp_server.model import Component, Evidence, Fix, PackageWorkload, Verdict
from mcp_server.package.launches import Launch
from mcp_server.package.view import PackageView, view_package
from mcp_server.plurals import counted
from mcp_server.probes.commands import choose_compiler
from mcp_server.runtime.context import Context
from mcp_server.tools.requests import run_request
from mcp_server.worker.events import LaunchTime, PairsTimed

MOST_SHOWN = 5
MOST_BUILDS = 2
ONE_THREAD = "one thread"
MOST_BUSY = 0.15  # of all processors, used by other processes


LEVERS = {
    ONE_THREAD: Lever(
        f"with {ONE_THREAD}",
        "run this model with one thread: its kernels are too small for more",
        "torch.set_num_threads(1)",
    ),
    "flushed denormals": Lever(
        "with flushed denormals",
        "flush denormal numbers to zero, or scale the inputs that are below 1e-38",
        "torch.set_flush_denormal(True)",
        "numbers below 1.2e-38 become 0",
    ),
}


@dataclass(frozen=True)
class Timed:
    """What was measured about a call."""

    view: PackageView
    signals: list[Found]
    pairs: list[PairsTimed]
    launches: list[LaunchTime]

    @property
    def plain(self) -> str:
        return f"A call takes {told(self.pairs[0].plain)}"

    @property
    def evidence(self) -> list[Evidence]:
        return [_seen(each) for each in self.pairs] + [
            _of_launch(each) for each in self.launches[:MOST_SHOWN]
        ]

    @property
    def remarks(self) -> list[str]:
        """Changes that are faster but not a fix, with the reason."""
        said = [
            f"{each.name}: {each.ratio:.2f} times as fast, but the outputs differ: not a fix."
            for each in self.pairs
            if each.low >= LEAST_WIN and not each.same
        ]
        busy = [each.others for each in self.pairs if each.name == ONE_THREAD and each.others > MOST_BUSY]
        said += [f"Threads were not judged: other processes used {each:.0%} of processors." for each in busy]
        return said

    @property
    def winning(self) -> list[PairsTimed]:
        """Changes that are faster beyond the noise and give the same outputs.

        Beside busy processes a single thread never waits, so its gain then says nothing about the package.
        """
        known = {*LEVERS, *(each.signal.name for each in self.signals)}
        won = [each for each in self.pairs if each.name in known and each.low >= LEAST_WIN and each.same]
        return [each for each in won if each.name != ONE_THREAD or each.others <= MOST_BUSY]

    def share(self, found: Found) -> float:
        """The share of a call's time spent in the launches of a signal; 0 if nothing was timed."""
        names = {each.symbol if each.kind == "cpp" else each.callee for each in found.launches}
        return sum(each.seconds / each.whole for each in self.launches if each.name in names and each.whole)


async def diagnose_call(
    context: Context, workload: PackageWorkload, program: Path | None, *, budget_s: float
) -> Verdict:
    """Return a verdict of category `cost`, or `no_fault` with the numbers. May raise `ProblemError`."""
    if workload.inputs is None:
        raise ProblemError("timing a call needs inputs", allowed="inputs=FILE of torch.save, or specs")
    view = await anyio.to_thread.run_sync(view_package, workload.package, workload.model_name)
    signals = signals_of(view)
    others = await _built(context, workload, program, signals) if program is not None else {}
    library = await build_forwarders(context, view)
    request: dict[str, object] = {**run_request(workload), "seconds": min(budget_s / 8, 12.0)}
    request["others"] = {name: str(path) for name, path in others.items()}
    if library is not None:
        request["forwarders"] = str(library)
    env = {"LD_PRELOAD": str(library)} if library is not None else {}
    run = await context.worker("time_call", request, env=env, workload=workload, alone=True)
    pairs = run.all(PairsTimed)
    if not pairs:
        raise ProblemError(f"the call could not be timed: {run.why}")
    launches = sorted(run.all(LaunchTime), key=lambda each: -each.seconds)
    return _verdict(context, Timed(view, signals, pairs, launches), program is not None)


async def _built(
    context: Context, workload: PackageWorkload, program: Path, signals: list[Found]
) -> dict[str, Path]:
    """Compile the program again with the options of its signals; leave out what does not compile."""
    out = context.fresh("others")
    wanted = [each.signal for each in signals if each.signal.configs is not None][:MOST_BUILDS]
    built = {}
    for number, signal in enumerate(wanted):
        path = out / f"{number}.pt2"
        request = {
            "exported": str(program),
            "package_path": str(path),
            "inductor_configs": dict(signal.configs or {}),
        }
        try:
            await context.worker("compile", request, workload=workload)
        except ProblemError:
            continue
        if path.exists():
            built[signal.name] = path
    return built


def _verdict(context: Context, timed: Timed, may_build: bool) -> Verdict:
    cost = context.cost.cost()
    by_name = {each.signal.name: each for each in timed.signals}
    left = _left(timed, may_build)
    if timed.winning:
        best = max(timed.winning, key=lambda each: each.ratio)
        verdict = _won(context, best, by_name.get(best.name), timed)
    elif left:
        found, share = left[0]
        first, signal = found.launches[0], found.signal
        part = f"{counted(len(found.launches), 'launch')} of {_name(first, timed.view)}"
        takes = f"{share:.0%} of it in {part}" if share else f"launch {first.index} in each"
        buildable = signal.configs is not None
        how = "a higher --budget-s" if may_build else "the exported program (--exported)"
        verdict = loss(
            signal.headline,
            f"{timed.plain}, {takes}: {signal.headline}.",
            _party(first, timed.view),
            Fix(text=signal.fix, after=signal.code),
            cost,
            timed.evidence,
            f"give {how}, so that a build with this option can be timed."
            if buildable
            else "only a change of the model could remove it.",
        )
    else:
        tried = ", ".join(f"{each.name} {each.ratio:.2f}" for each in timed.pairs)
        first_time = timed.launches[0] if timed.launches else None
        top = f"; most of it in {first_time.name} ({told(first_time.seconds)})" if first_time else ""
        summary = f"{timed.plain}{top}. No change saved time (ratio of paired medians: {tried})."
        verdict = no_loss(summary, cost, timed.evidence)
    further = {each.signal.headline: each.signal.fix for each, _ in left}
    further.pop(verdict.headline, None)
    more = [f"Also: {headline}. {fix[:1].upper()}{fix[1:]}." for headline, fix in further.items()]
    return verdict.model_copy(update={"remarks": [*verdict.remarks, *timed.remarks, *more]})


def _left(timed: Timed, may_build: bool) -> list[tuple[Found, float]]:
    """List signals not settled by a timed build, with their launches' share of the time, the largest first.

    If a build without such work was timed, other builds that avoid the same work are settled, too.
    """
    built = {each.name for each in timed.pairs}
    settled = {each.signal.headline for each in timed.signals if may_build and each.signal.name in built}
    left = [
        (each, timed.share(each))
        for each in timed.signals
        if each.signal.name not in built and each.signal.headline not in settled
    ]
    left = [(each, share) for each, share in left if share >= each.signal.share]
    return sorted(left, key=lambda each: (each[0].signal.share != 0.0, -each[1]))


def _won(context: Context, best: PairsTimed, found: Found | None, timed: Timed) -> Verdict:
    spread = (
        f"{best.ratio:.2f} times as fast (quartiles {best.low:.2f} to {best.high:.2f}, {best.pairs} pairs)"
    )
    party, headline = Component(kind="environment", name=best.name), f"the call is slow without {best.name}"
    if found is not None:
        party, headline = _party(found.launches[0], timed.view), found.signal.headline
    lever = found.signal.lever if found is not None else LEVERS[best.name]
    same = " and gave the same outputs"
    win = Win(lever, best.plain, best.changed, best.plain, spread, same=same)
    summary = f"{timed.plain}. With {best.name} it takes {told(best.changed)}: {spread}."
    return loss(headline, summary, party, win, context.cost.cost(), timed.evidence)


def _party(launch: Launch, view: PackageView) -> Component:
    return Component(
        kind="kernel",
        name=_name(launch, view),
        launch_index=launch.index,
        model_locations=view.locations(launch.index),
    )


def _name(launch: Launch, view: PackageView) -> str:
    """The kernel, or the operator that the proxy executor calls."""
    return view.package.proxy_target(launch.proxy_index) or launch.kernel


def _seen(each: PairsTimed) -> Evidence:
    same = "the same outputs" if each.same else "different outputs"
    times = f"{told(each.plain)} unchanged, {told(each.changed)} with the change"
    text = f"{each.name}: {times}, ratio {each.ratio:.2f}"
    return Evidence(step="time_call", fact=f"{text} [{each.low:.2f} {each.high:.2f}], {same}")


def _of_launch(each: LaunchTime) -> Evidence:
    share = each.seconds / each.whole if each.whole else 0.0
    times = counted(round(each.calls), "call")
    return Evidence(step="time_call", fact=f"{each.name}: {told(each.seconds)} ({share:.0%}), {times}")


# A library of forwarders, loaded before an unchanged package: one for each kernel and operator it calls. Each
# passes on six integer registers, eight vector registers and as many stack words as the widest kernel has
# parameters (System V ABI), which fits the signature of every kernel and shim. Measured on a CPU: no visible
# overhead on calls of 21 ms, 0.17 microseconds a launch (facts of torch 2.13).
LEAST_WORDS = 24
_OPERATOR = re.compile(r"aoti_torch_(?:cpu|mkldnn)_(?!dtype|device|layout)\w+")
_HEAD = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int aoti_debug_on;
static long long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static void *find(const char *name, void *caller) {
  Dl_info at;
  if (dladdr(caller, &at)) {
    void *library = dlopen(at.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
    void *found = library ? dlsym(library, name) : 0;
    if (found) return found;
  }
  return dlsym(RTLD_NEXT, name);
}
"""
_ONE = """\
static long (*real@N@)(@PARAMETERS@);
long @NAME@(@PARAMETERS@) {
  if (!real@N@) real@N@ = find("@NAME@", __builtin_return_address(0));
  if (!aoti_debug_on) return real@N@(@ARGUMENTS@);
  long long begin = now();
  long result = real@N@(@ARGUMENTS@);
  aoti_debug_ns[@N@] += now() - begin, aoti_debug_calls[@N@]++;
  return result;
}
"""


def symbols_of(view: PackageView) -> list[str]:
    """List the kernels and shims that the launches of a package call."""
    names = dict.fromkeys(
        each.symbol if each.kind == "cpp" else each.callee for each in view.wrapper.launches
    )
    wanted = (name for name in names if re.fullmatch(r"\w+", name))
    return [
        n
        for n in wanted
        if n.startswith("cpp_fused") or _OPERATOR.fullmatch(n) or n.endswith("call_function")
    ]


def source_of(names: Sequence[str], words: int) -> str:
    """Return the C source of the forwarders."""
    registers = [f"long a{n}" for n in range(6)] + [f"double d{n}" for n in range(8)]
    parameters = [*registers, *(f"long s{n}" for n in range(words))]
    count = len(names)
    lists = f"int aoti_debug_count = {count};\nlong long aoti_debug_ns[{count}], aoti_debug_calls[{count}];\n"
    listed = ", ".join(f'"{name}"' for name in names)
    text = [_HEAD, lists, f"const char *aoti_debug_names[] = {{{listed}}};\n"]
    for number, name in enumerate(names):
        one = _ONE.replace("@N@", str(number)).replace("@NAME@", name)
        one = one.replace("@PARAMETERS@", ", ".join(parameters))
        text.append(one.replace("@ARGUMENTS@", ", ".join(each.split()[1] for each in parameters)))
    return "".join(text)


async def build_forwarders(context: Context, view: PackageView) -> Path | None:
    """Build the library; None if there are no such calls, on other processors, or without a compiler."""
    names = symbols_of(view)
    if not names or platform.machine() != "x86_64":
        return None
    widest = max((len(kernel.parameters) for kernel in view.wrapper.kernels.values()), default=0)
    compiler = await anyio.to_thread.run_sync(choose_compiler, (), child_environment({}))
    folder = context.fresh("forwarders")
    source, library = folder / "forwarders.c", folder / "forwarders.so"
    source.write_text(source_of(names, max(LEAST_WORDS, widest)))
    argv = (compiler, "-x", "c", "-O2", "-w", "-shared", "-fPIC", str(source), "-o", str(library), "-ldl")
    await context.run(Command(argv=argv, cwd=folder, timeout_s=60), "compile-forwarders")
    return library if library.exists() else None
