"""`--symptom slow`: finds where the time of a call goes, and times changes in pairs of calls."""

import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

import anyio.to_thread

from mcp_server.cost.signals import (
    CUT_EARLY,
    DEFAULTS,
    LEAST_WIN,
    PRECOMPUTED,
    SAME_WORK,
    Found,
    Lever,
    Win,
    loss,
    no_loss,
    signals_of,
    told,
)
from mcp_server.errors import ProblemError, argument
from mcp_server.jobs.child import Command, child_environment
from mcp_server.logs.text import short_message
from mcp_server.model import Component, Evidence, Fix, ModelLocation, PackageWorkload, Verdict
from mcp_server.package.launches import Launch
from mcp_server.package.view import PackageView, view_package
from mcp_server.plurals import capitalized, counted
from mcp_server.probes.commands import choose_compiler
from mcp_server.runtime.context import Context
from mcp_server.tools.requests import INPUTS_HELP, run_request
from mcp_server.worker.events import LaunchTime, PairsTimed, Phase, ProgramChanged

MOST_SHOWN = 5
MOST_BUILDS = 2
SHARE_OF_BUILDS = 0.75  # of the budget; the rest is for the timing
LEAST_S = 30.0  # for the timing, even if the budget is spent
ONE_THREAD, ALL_THREADS = "one thread", "a thread for each processor"
LEAST_SPUN = 1.5  # several threads that use this many times the processor time of one thread mostly spin


LEVERS = {
    ONE_THREAD: Lever(
        f"with {ONE_THREAD}",
        "run this model with one thread: its kernels are too small for more",
        "torch.set_num_threads(1)",
    ),
    ALL_THREADS: Lever(
        f"with {ALL_THREADS}",
        "let this model use more threads: the program allows fewer threads than there are processors",
        "torch.set_num_threads(os.cpu_count())",
        "other work on this machine gets less processor time",
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
    tried: frozenset[str] = frozenset()  # signals that were built, or whose change does not apply
    died: str = ""  # name of the build that ended the process

    @property
    def plain(self) -> str:
        first = self.pairs[0]
        return f"A call takes {told(first.plain)}{_of_what(first)}"

    @property
    def evidence(self) -> list[Evidence]:
        return [_seen(each) for each in self.pairs] + [
            _of_launch(each) for each in self.launches[:MOST_SHOWN]
        ]

    @property
    def remarks(self) -> list[str]:
        """Changes that are faster but no fix, with the reason."""
        said = [
            f"{each.name}: {each.ratio:.2f} times as fast, but the outputs differ: not a fix."
            for each in self.pairs
            if each.low >= LEAST_WIN and not each.same
        ]
        if self.died:
            said.append(f"{self.died}: this build ends the process that calls it: not a fix.")
        busy = [each.others for each in self.pairs if each.by_cpu]
        if busy:
            said.append(
                f"Other processes used {max(busy):.0%} of the processors, so processor time of one thread "
                "was compared instead of wall time. This does not show whether more threads would help."
            )
        return said

    @property
    def winning(self) -> list[PairsTimed]:
        """Changes that are faster beyond the noise and give the same outputs, the best first.

        The ratio of a build option counts a tenth more, because a change of the model is more work.
        """
        won = [each for each in self.pairs if each.same and each.low >= self.least(each)]
        options = {each.signal.name for each in self.signals if each.signal.configs is not None}
        return sorted(won, key=lambda each: -each.ratio * (1.1 if each.name in options else 1.0))

    def least(self, pair: PairsTimed) -> float:
        """The ratio from which a change counts as faster; infinite for a change that cannot be judged.

        In processor time, one thread always wins, as it never spins to wait: it needs a higher ratio.
        """
        if pair.name not in {*LEVERS, *(each.signal.name for each in self.signals)}:
            return inf
        spun = {ONE_THREAD: LEAST_SPUN, ALL_THREADS: inf} if pair.by_cpu else {}
        return spun.get(pair.name, LEAST_WIN)

    def share(self, found: Found) -> float:
        """The share of a call's time spent in the launches of a signal. 0 if nothing was timed."""
        names = {each.symbol if each.kind == "cpp" else each.callee for each in found.launches}
        return sum(each.seconds / each.whole for each in self.launches if each.name in names and each.whole)


@dataclass(frozen=True)
class Built:
    """How the package was built and called: exported program, options of the build, threads of the caller."""

    program: Path | None = None
    configs: dict[str, object] = field(default_factory=dict)
    threads: int = 0


async def diagnose_call(
    context: Context, workload: PackageWorkload, built: Built, *, budget_s: float
) -> tuple[Verdict, float]:
    """A verdict (`cost`, or `no_fault` with the times), and the seconds of a single call."""
    if workload.inputs is None:
        raise ProblemError("timing a call needs inputs", allowed=INPUTS_HELP)
    view = await anyio.to_thread.run_sync(view_package, workload.package, workload.model_name)
    signals = signals_of(view)
    others: dict[str, Path] = {}
    tried: set[str] = set()
    if built.program is not None:
        signals = _with_program(signals, built)
        context.cost.clock.ends_s = SHARE_OF_BUILDS * budget_s
        signals, others, tried = await _builds(context, workload, built, signals)
    context.cost.clock.ends_s = max(budget_s, context.cost.clock.worked_s + LEAST_S)
    request: dict[str, object] = {**run_request(workload), "threads": built.threads}
    launches = await _launches(context, workload, view, request)
    request["seconds"] = min(budget_s / 8, 12.0)
    pairs, died = await _pairs(context, workload, request, others)
    timed = Timed(view, signals, pairs, launches, frozenset(tried), died)
    return _verdict(context, timed, built), pairs[0].plain


async def _launches(
    context: Context, workload: PackageWorkload, view: PackageView, request: dict[str, object]
) -> list[LaunchTime]:
    """Time the launches of the unchanged package, slowest first. Empty on a GPU: launches return early."""
    library = await build_forwarders(context, view) if view.package.device_type == "cpu" else None
    if library is None:
        return []
    run = await context.worker(
        "time_call",
        {**request, "forwarders": str(library)},
        name="time_launches",
        env={"LD_PRELOAD": str(library)},
        workload=workload,
        alone=True,
    )
    return sorted(run.all(LaunchTime), key=lambda each: -each.seconds)


async def _pairs(
    context: Context, workload: PackageWorkload, request: dict[str, object], others: dict[str, Path]
) -> tuple[list[PairsTimed], str]:
    """Time each change. If a build ends the process, time the others and also return the build's name."""
    died = ""
    while True:
        kept = {name: str(path) for name, path in others.items() if name != died}
        run = await context.worker("time_call", {**request, "others": kept}, workload=workload, alone=True)
        pairs, phase = run.all(PairsTimed), run.last(Phase)
        if run.finished.ok or died or phase is None or phase.about not in kept:
            break
        died = phase.about
    if not pairs:
        what = f"the call fails, so it cannot be timed: {short_message(run.why)}"
        raise ProblemError(what, next_call=f"diagnose it without {argument('symptom')} slow")
    return pairs, died


def _with_program(signals: list[Found], built: Built) -> list[Found]:
    """Add the signals that need the program: other work on constants, unused rows, options of the build."""
    names = [each.signal.name for each in signals]
    leave = f"leave out {', '.join(built.configs)} of the build's options"
    own = [Found(replace(DEFAULTS, fix=leave))] if built.configs else []
    more = [Found(each) for each in (PRECOMPUTED, CUT_EARLY) if each.name not in names]
    return [*own, *signals, *more]


async def _builds(
    context: Context, workload: PackageWorkload, built: Built, signals: list[Found]
) -> tuple[list[Found], dict[str, Path], set[str]]:
    """Compile the program with the options or the change of each signal, at most MOST_BUILDS times.

    Return all signals, with the lines that their changes replaced; the packages, by the name of their signal;
    and the names of settled signals, which were built or had nothing to change.
    """
    out, found = context.fresh("others"), []
    packages: dict[str, Path] = {}
    settled: set[str] = set()
    for number, each in enumerate(signals):
        signal, path = each.signal, out / f"{number}.pt2"
        late = context.cost.clock.worked_s > context.cost.clock.ends_s
        if not signal.builds or len(packages) == MOST_BUILDS or late:
            found.append(each)
            continue
        own = {} if signal.name == DEFAULTS.name else {**built.configs, **(signal.configs or {})}
        request: dict[str, object] = {"exported": str(built.program), "package_path": str(path)}
        request |= {"inductor_configs": own, "extra_imports": workload.extra_imports}
        how, more = ("compile_changed", {"change": signal.change}) if signal.change else ("compile", {})
        with suppress(ProblemError):
            run = await context.worker(how, {**request, **more}, workload=workload)
            changed = run.last(ProgramChanged)
            seen = changed.lines if changed is not None else []
            lines = tuple(ModelLocation(file=x.file, line=x.line, code=x.code) for x in seen)
            each = replace(each, lines=lines)
            if path.exists():
                packages[signal.name] = path
            if path.exists() or (changed is not None and not changed.nodes):
                settled.add(signal.name)
        found.append(each)
    return found, packages, settled


def _verdict(context: Context, timed: Timed, built: Built) -> Verdict:
    cost = context.cost.cost()
    by_name = {each.signal.name: each for each in timed.signals}
    left = _left(timed)
    certain = [each for each in left if each[0].signal.certain]
    if timed.winning:
        best = timed.winning[0]
        verdict = _won(context, best, by_name.get(best.name), timed)
    elif certain:
        found, share = certain[0]
        first, signal = found.launches[0], found.signal
        part = f"{counted(len(found.launches), 'launch')} of {_name(first, timed.view)}"
        takes = f"{share:.0%} of it in {part}" if share else f"launch {first.index} in each"
        how = "a higher --budget-s" if built.program else "the exported program (--exported)"
        verdict = loss(
            signal.headline,
            f"{timed.plain}, {takes}: {signal.headline}.",
            _party(found, timed.view),
            Fix(text=signal.fix, after=signal.code),
            cost,
            timed.evidence,
            f"give {how}, so that a build without this work can be timed."
            if signal.builds and not built.program
            else "to test this, the model itself would have to be changed.",
        )
    else:
        short = {
            each.name: timed.least(each) for each in timed.pairs if each.ratio >= LEAST_WIN and each.same
        }
        limits = {name: f" ({least} would count)" for name, least in short.items() if least < inf}
        tried = ", ".join(f"{each.name} {each.ratio:.2f}{limits.get(each.name, '')}" for each in timed.pairs)
        first_time = timed.launches[0] if timed.launches else None
        share = first_time.seconds / (first_time.whole or 1.0) if first_time else 0.0
        top = f"; {share:.0%} of it in {first_time.name}" if first_time else ""
        summary = f"{timed.plain}{top}. No change that was tried saves time (times as fast: {tried})."
        verdict = no_loss(summary, cost, timed.evidence)
    further = {each.signal.headline: each.signal.fix for each, _ in left}
    further.pop(verdict.headline, None)
    more = [f"Also: {headline}. {capitalized(fix)}." for headline, fix in further.items()]
    return verdict.model_copy(update={"remarks": [*verdict.remarks, *timed.remarks, *more]})


def _left(timed: Timed) -> list[tuple[Found, float]]:
    """List the signals that are not settled, with the share of the time in their launches, largest first.

    A signal also counts as settled if a signal with the same headline is settled.
    """
    settled = {each.signal.headline for each in timed.signals if each.signal.name in timed.tried}
    open_ones = [each for each in timed.signals if each.launches and each.signal.headline not in settled]
    left = [(each, timed.share(each)) for each in open_ones]
    unknown = not timed.launches
    left = [
        (each, share)
        for each, share in left
        if share >= each.signal.share or (unknown and each.signal.headline == SAME_WORK)
    ]
    return sorted(left, key=lambda each: (each[0].signal.headline != SAME_WORK, -each[1]))


def _won(context: Context, best: PairsTimed, found: Found | None, timed: Timed) -> Verdict:
    spread = (
        f"{best.ratio:.2f} times as fast (quartiles {best.low:.2f} to {best.high:.2f}, {best.pairs} pairs)"
    )
    party, headline = Component(kind="environment", name=best.name), f"the call is faster with {best.name}"
    if found is not None:
        party, headline = _party(found, timed.view), found.signal.headline
    lever = found.signal.lever if found is not None else LEVERS[best.name]
    same = " and returned the same outputs"
    win = Win(lever, best.plain, best.changed, best.plain, spread, same=same, unit=_of_what(best))
    before = f"A call takes {told(best.plain)}{_of_what(best)}"
    summary = f"{before}. With {best.name} it takes {told(best.changed)}: {spread}."
    return loss(headline, summary, party, win, context.cost.cost(), timed.evidence)


def _party(found: Found, view: PackageView) -> Component:
    """The first launch of a signal, else the model lines that a change replaced, else the build."""
    if not found.launches and not found.lines:
        return Component(kind="environment", name=found.signal.name)
    if not found.launches:
        return Component(kind="op", name=found.lines[0].code, model_locations=list(found.lines))
    launch = found.launches[0]
    return Component(
        kind="kernel",
        name=_name(launch, view),
        launch_index=launch.index,
        model_locations=list(found.lines) or view.locations(launch.index),
    )


def _of_what(pairs: PairsTimed) -> str:
    return " of processor time" if pairs.by_cpu else ""


def _name(launch: Launch, view: PackageView) -> str:
    """The kernel of a launch, or the operator that it calls through the proxy executor."""
    return view.package.proxy_target(launch.proxy_index) or launch.kernel


def _seen(each: PairsTimed) -> Evidence:
    same = "the same outputs" if each.same else "different outputs"
    times = f"{told(each.plain)}{_of_what(each)} unchanged, {told(each.changed)} with the change"
    text = f"{each.name}: {times}, ratio {each.ratio:.2f}"
    return Evidence(step="time_call", fact=f"{text} [{each.low:.2f} {each.high:.2f}], {same}")


def _of_launch(each: LaunchTime) -> Evidence:
    share = each.seconds / each.whole if each.whole else 0.0
    times = counted(round(each.calls), "call")
    return Evidence(step="time_call", fact=f"{each.name}: {told(each.seconds)} ({share:.0%}), {times}")


# A preloaded library has a forwarder for each kernel and operator that the unchanged package calls. It times
# the function, and passes on six integer registers, eight vector registers, and as many stack words as the
# widest kernel has parameters: enough for any signature (System V ABI). It costs 0.17 microseconds a launch
# (torch 2.13).
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
    """The C source of the forwarders."""
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
    """Build the forwarders. None if there is nothing to forward, or no build for this processor."""
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
