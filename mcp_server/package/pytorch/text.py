"""The text of a program: functions, the class with its methods, the file around them.

Besides torch, a program needs a few short functions, and includes only those that it calls.

Its weights are a safetensors file, copied from the package's library, blob or weight files.
"""

import json
import re
import struct
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan
from pathlib import Path
from typing import BinaryIO

from mcp_server.package.archive import CompiledConstant, Package
from mcp_server.package.terms.sizes import index_at, reached
from mcp_server.package.terms.term import itemsize_of

INDENT = "    "
HEAD = '"""A package of AOTInductor, read as PyTorch. `python -i model.py`, then Model()(*inputs)."""'
DEDENT = "# end"  # marks the end of a Python block


def assembled(
    functions: Sequence[str],
    loads: Sequence[str],
    parameters: Sequence[str],
    folding: Sequence[str],
    forward: Sequence[str],
    device: str,
    dtypes: Collection[str],
) -> str:
    """The text of the file. `dtypes` are the types of the weights."""
    init = [*(["weights = load_weights(weights)"] if loads else []), *loads, *folding] or ["pass"]
    lines = ['def __init__(self, weights="weights.safetensors"):', *(INDENT + line for line in init), ""]
    lines += [f"def forward({', '.join(['self', *parameters])}):", *(INDENT + line for line in forward), ""]
    model = "\n".join(["class Model:", *(f"{INDENT}{line}".rstrip() for line in lines)])
    rest = "\n\n\n".join([*functions, f"{model}\n{INDENT}__call__ = forward\n"])
    helpers = helpers_for(rest)
    head = [HEAD, ""]
    head += ["import json", "import os", ""] if loads else []
    functional = re.search(r"\bF\.", re.sub(r"#.*", "", rest + helpers))
    head += ["import torch", *(["from torch.nn import functional as F"] if functional else []), ""]
    available = f' if torch.{device}.is_available() else "cpu"' if device != "cpu" else ""
    head += [f'device = torch.device("{device}"{available})']
    if loads:
        codes = [f'"{code}": torch.{dtype}' for dtype, code in CODES.items() if dtype in dtypes]
        head += [f"DTYPES = {{{', '.join(codes)}}}"]
    return "\n\n\n".join(each.strip("\n") for each in ("\n".join(head), helpers, rest) if each) + "\n"


def function(
    name: str, parameters: Sequence[str], lines: Sequence[str], results: Sequence[str], shapes: Sequence[str]
) -> str:
    """The text of a function. A last statement that computes the only result becomes the `return`."""
    body = list(lines)
    if len(results) == 1 and body and body[-1].startswith(f"{results[0]} = "):
        body[-1] = f"return {body[-1].partition(' = ')[2]}"
    elif results:
        body.append(f"return {', '.join(results)}")
    text = [f"def {name}({', '.join(parameters)}):"]
    text += [f"{INDENT}# {printable(each)}" for each in shapes]
    return "\n".join([*text, *(f"{INDENT}{line}" for line in body or ["pass"])])


# Functions that the compiler decomposed into several statements. A rule matches whole lines with their names.
# The names that it removes must not be used anywhere else.
_NUMBER = r"[\d.]+(?:e-?\d+)?"
_TO_LAST = r"\[(?::, )+None\]"
_LARGEST = r"(?P<a>\w+) = (?P<x>.+)\.amax\(-1\)\n"
_CENTRED = r"(?P<a>\w+) = (?P<x>.+)\.mean\(-1\)\n" rf"(?P<b>\w+) = (?P=x) - (?P=a){_TO_LAST}\n"
_FLOAT = r"(?:\.float\(\))?"
_IN_LINE = r"(?P<out>.*)", r"(?P<rest>.*)$"
_SCALED = rf"(?P<scores>\w+)(?P<scale> [*/] {_NUMBER})"


def _of_scaled(before: str, scaled: str) -> tuple[str, str]:
    """The rule for a softmax of scaled scores, as `prepare_softmax` of the compiler writes it."""
    again = "(?P=x)" if before else r"\((?P=scores)(?P=scale)\)"
    lines = [
        rf"{before}(?P<a>\w+) = \(~{scaled}\.isfinite\(\)\)\.any\(-1\)",
        r"(?P<b>\w+) = (?P=scores)\.amax\(-1\)",
        rf"(?P<c>\w+) = {again}\.amax\(-1\)",
        r"(?P<d>\w+) = ~(?P=a)",
        rf"(?P<e>\w+) = (?P=scores) - (?P=b){_TO_LAST}",
        rf"(?:(?P<f>\w+) = (?P=e)(?P=scale)\n)?(?P<g>\w+) = {again} - (?P=c){_TO_LAST}",
        rf"(?P<h>\w+) = torch\.where\((?P=d){_TO_LAST}, (?:(?P=f)|\((?P=e)(?P=scale)\)), (?P=g)\)",
        r"(?P<i>\w+) = (?P=h)\.exp\(\)\.sum\(-1\)",
        rf"{_IN_LINE[0]}(?P=h)\.exp\(\) / (?P=i){_TO_LAST}{_IN_LINE[1]}",
    ]
    return "\n".join(lines), r"\g<out>(\g<scores>\g<scale>).softmax(-1)\g<rest>"


_RULES = [
    (
        # softmax, whose exponentials may be computed twice
        rf"{_LARGEST}(?P<b>\w+) = \((?P=x) - (?P=a){_TO_LAST}\)\.exp\(\)\n(?P<c>\w+) = (?P=b)\.sum\(-1\)\n"
        rf"{_IN_LINE[0]}(?P=b) / (?P=c){_TO_LAST}{_IN_LINE[1]}",
        r"\g<out>\g<x>.softmax(-1)\g<rest>",
    ),
    (
        rf"{_LARGEST}(?P<b>\w+) = (?P=x) - (?P=a){_TO_LAST}\n(?:(?P<d>\w+) = (?P=b)\.exp\(\)\n)?"
        rf"(?P<c>\w+) = (?P=b)\.exp\(\)\.sum\(-1\)\n"
        rf"{_IN_LINE[0]}(?:(?P=b)\.exp\(\)|(?P=d)) / (?P=c){_TO_LAST}{_IN_LINE[1]}",
        r"\g<out>\g<x>.softmax(-1)\g<rest>",
    ),
    _of_scaled(rf"(?P<x>\w+) = {_SCALED}\n", "(?P=x)"),
    _of_scaled("", rf"\({_SCALED}\)"),
    (
        # log softmax
        rf"{_LARGEST}(?P<b>\w+) = (?P=x) - (?P=a){_TO_LAST}\n(?P<c>\w+) = (?P=b)\.exp\(\)\.sum\(-1\)\n"
        rf"(?:(?P<d>\w+) = (?P=c)\.log\(\)\n)?"
        rf"{_IN_LINE[0]}(?P=b) - (?:(?P=c)\.log\(\)|(?P=d)){_TO_LAST}{_IN_LINE[1]}",
        r"\g<out>\g<x>.log_softmax(-1)\g<rest>",
    ),
    (
        # logsumexp
        rf"{_LARGEST}(?:(?P<b>\w+) = (?P=a)\.abs\(\)\n)?"
        r"(?P<c>\w+) = (?:(?P=a)\.abs\(\)|(?P=b)) == float\(\"inf\"\)\n"
        r"(?P<d>\w+) = torch\.where\((?P=c), 0\.0, (?P=a)\)\n"
        rf"(?P<e>\w+) = \((?P=x) - (?P=d){_TO_LAST}\)\.exp\(\)\.sum\(-1\)\n"
        rf"{_IN_LINE[0]}(?P=e)\.log\(\) \+ (?P=d){_IN_LINE[1]}",
        r"\g<out>\g<x>.logsumexp(-1)\g<rest>",
    ),
    (
        # layer norm
        rf"{_CENTRED}{_IN_LINE[0]}\(\((?P=b) \* \(\((?P=b) \* (?P=b)\)\.mean\(-1\) \+ (?P<eps>{_NUMBER})\)"
        rf"\.rsqrt\(\){_TO_LAST}\) \* (?P<w>\w+)(?P<f>{_FLOAT})\) \+ (?P<bias>\w+{_FLOAT}){_IN_LINE[1]}",
        r"\g<out>F.layer_norm(\g<x>, \g<w>.shape, \g<w>\g<f>, \g<bias>, \g<eps>)\g<rest>",
    ),
    (
        # RMS norm
        rf"{_IN_LINE[0]}\((?P<x>\w+|\(.+\)) \* \(\((?P=x) \* (?P=x)\)\.mean\(-1\) \+ (?P<eps>{_NUMBER})\)"
        rf"\.rsqrt\(\){_TO_LAST}\) \* (?P<w>\w+)(?P<f>{_FLOAT}){_IN_LINE[1]}",
        r"\g<out>F.rms_norm(\g<x>, \g<w>.shape, \g<w>\g<f>, \g<eps>)\g<rest>",
    ),
    (
        # group norm
        r"(?P<a>\w+) = (?P<x>\w+)(?P<as>\.(?:unflatten\(1, \(|reshape\(\d+, )(?P<g>\d+), (?P<k>\d+)[^a-z]*\))"
        r"(?P<p>\.permute\(0, 1, [\d, ]+\))?\.mean\(\(-3, -2, -1\)\)\n"
        r"(?P<b>\w+) = (?P=x)(?P=as)(?(p)(?P=p)) - (?P=a)\[:, :, None, None, None\]\n"
        rf"(?P<c>\w+) = \(\((?P=b) \* (?P=b)\)\.mean\(\(-3, -2, -1\)\) \+ (?P<eps>{_NUMBER})\)\.rsqrt\(\)"
        r"\[:, :, None\] \* (?P<w>\w+)\.reshape\((?P=g), (?P=k)\)\n"
        r"(?P<d>\w+) = \(\(-(?P=a)\)\[:, :, None\] \* (?P=c)\) \+ (?P<bias>\w+)\.reshape\((?P=g), (?P=k)\)\n"
        rf"{_IN_LINE[0]}\((?P=x)(?P=as)(?P<q>\.permute\(0, 3, 4, 1, 2\))? \* (?P=c)"
        r"(?P<at>(?(q)\[:, None, None, :, :\]|\[:, :, :, None, None\]))\) \+ "
        rf"(?P=d)(?P=at){_IN_LINE[1]}",
        r"\g<out>F.group_norm(\g<x>, \g<g>, \g<w>, \g<bias>, \g<eps>)\g<as>\g<q>\g<rest>",
    ),
    (
        # mean and variance
        r"(?P<out>\w+) = (?P<x>.+)\.mean\((?P<at>.+)\)\n(?P<b>\w+) = (?P=x) - (?P=out)\[[:, None]+\]\n"
        r"(?P<c>\w+) = \((?P=b) \* (?P=b)\)\.mean\((?P=at)\)$",
        r"\g<c>, \g<out> = torch.var_mean(\g<x>, \g<at>, correction=0)",
    ),
]
_COMPILED = [(re.compile(f"^{pattern}", re.M), written) for pattern, written in _RULES]
_MADE = re.compile(r"^(\w+) = ", re.M)


def put_together(lines: Sequence[str]) -> list[str]:
    """Replace statements into which the compiler decomposed a function (softmax, ...) with a call of it."""
    text = "\n".join(lines)
    for pattern, written in _COMPILED:
        for found in list(pattern.finditer(text)):
            made = found.expand(written)
            changed = text.replace(found[0], made, 1)
            gone = set(_MADE.findall(found[0])) - set(re.findall(r"\w+", made.partition(" = ")[0]))
            if found[0] in text and not any(re.search(rf"\b{name}\b", changed) for name in gone):
                text = changed
    return text.split("\n") if text else []


def without_unused(lines: Sequence[str], results: Iterable[str]) -> list[str]:
    """Remove assignments that neither `results` nor other statements need."""
    wanted = set(results)
    kept: list[str] = []
    for line in reversed(lines):
        name = re.match(r"(\w+) = ", line)
        if name and name[1] not in wanted and not any(re.search(rf"\b{name[1]}\b", each) for each in kept):
            continue
        kept.append(line)
    return kept[::-1]


def with_blanks(line: str, used: Collection[str]) -> str:
    """Write a call with several results: `_` for unused results."""
    found = re.match(r"\w+(?:, \w+)+ = (?=torch\.|attention\()", line)
    if found is None:
        return line
    names = [name if name in used else "_" for name in found[0].removesuffix(" = ").split(", ")]
    return f"{', '.join(names)} = {line[found.end() :]}"


def indented(lines: Iterable[str]) -> list[str]:
    """Indent Python blocks, each of which ends with `DEDENT`."""
    depth, found = 0, []
    for line in lines:
        if line == DEDENT:
            depth -= 1
            continue
        found.append(INDENT * depth + line)
        depth += line.startswith(("if ", "else:", "while "))
    return found


def quoted(text: str) -> str:
    """Write text from the package as a one-line Python string literal."""
    return json.dumps(printable(text))


def printable(text: str) -> str:
    """Remove control characters, so that a comment stays on one line."""
    return "".join(each if each.isprintable() else " " for each in text)


HELPERS = {
    "strided": '''
def strided(tensor, size, stride, offset=0):
    """Elements of the tensor's memory, wherever they lie."""
    return tensor.as_strided(size, stride, tensor.storage_offset() + offset)
''',
    "laid_out": '''
def laid_out(tensor, stride):
    """The tensor with these strides: itself, or a copy."""
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
''',
    "flat": '''
def flat(tensor):
    """The tensor's memory from its first element on."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return tensor.as_strided((count,), (1,), tensor.storage_offset())
''',
    "take": '''
def take(tensor, index, where=True, strict=True):
    """Elements at flat indices where a test holds; unless `strict`, those outside are not used."""
    memory = flat(tensor)
    index, where = (torch.as_tensor(each, device=memory.device) for each in (index, where))
    index, where = torch.broadcast_tensors(index, where)
    index = torch.where(where, index, 0)
    if not strict:
        index = index.clamp(0, max(len(memory) - 1, 0))
    if index.numel() and not 0 <= index.min() <= index.max() < len(memory):
        raise IndexError(f"elements {int(index.min())} to {int(index.max())} of {len(memory)} are read")
    return memory[index] if len(memory) else memory.new_zeros(index.shape)
''',
    "put": '''
def put(tensor, index, value, add=False, where=True):
    """Write (or add) elements at flat indices where a test holds."""
    memory = flat(tensor)
    index, value, where = (torch.as_tensor(each, device=memory.device) for each in (index, value, where))
    index, value, where = torch.broadcast_tensors(index, value.to(tensor.dtype), where)
    index, value = index[where], value[where]
    if index.numel() and not 0 <= index.min() <= index.max() < len(memory):
        raise IndexError(f"elements {int(index.min())} to {int(index.max())} of {len(memory)} are written")
    memory.index_put_((index,), value, accumulate=add)
''',
    "check": '''
def check(value, lower, upper, launch, where=True):
    """What the kernel asserts of an index: lower <= value < upper."""
    bad = torch.zeros_like(value, dtype=torch.bool)
    if lower is not None:
        bad = bad | (value < lower)
    if upper is not None:
        bad = bad | (value >= upper)
    bad = bad & where
    if bad.any():
        at = bad.nonzero()[0].tolist()
        found = value.expand(bad.shape)[tuple(at)].item()
        raise IndexError(f"{launch}: index {found} at {at} is not in {lower} <= index < {upper}")
''',
    "empty": '''
def empty(size, stride, dtype):
    """Memory that no launch has written yet: NaN, or a number that nobody takes for a right one."""
    tensor = torch.empty_strided(size, stride, dtype=dtype, device=device)
    return tensor.fill_(float("nan") if dtype.is_floating_point else True if dtype == torch.bool else 77)
''',
    "philox": '''
def philox(seed, offset, gpu):
    """Two words of Philox 4x32 with 10 rounds; a CPU takes 32 bits of the seed."""
    mask = 2**32 - 1
    seed, offset = (torch.as_tensor(each, device=device).long() for each in (seed, offset))
    a, b, c, d = offset & mask, 0, 0, 0
    low, high = seed & mask, seed >> 32 & mask if gpu else 0
    for _ in range(10):
        one, two = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (two >> 32 & mask) ^ b ^ low, two & mask, (one >> 32 & mask) ^ d ^ high, one & mask
        low, high = (low + 0x9E3779B9) & mask, (high + 0xBB67AE85) & mask
    return a, b
''',
    "uniform": '''
def uniform(word, gpu):
    """A word as a number from 0 to 1, by its sign bit as GPU and CPU do it."""
    word = torch.where(word < 2**31, word, 2**32 - 1 - word) if gpu else word & 0x7FFFFFFF
    return word.float() * 4.6566127342e-10
''',
    "rand": '''
def rand(seed, offset, gpu=False):
    """What the kernel draws from 0 to 1."""
    return uniform(philox(seed, offset, gpu)[0], gpu)
''',
    "randn": '''
def randn(seed, offset, gpu=False):
    """What the kernel draws from the normal distribution."""
    one, two = (uniform(word, gpu) for word in philox(seed, offset, gpu))
    one, two = (one.clamp(min=1e-7), two) if gpu else (1 - one, (1 - two).double())
    return ((-2.0 * one.log()).to(two.dtype).sqrt() * (6.283185307179586 * two).cos()).float()
''',
    "randint64": '''
def randint64(seed, offset, low, high, gpu=False):
    """The whole number that the kernel draws from `low` to `high`."""
    one, two = philox(seed, offset, gpu)
    if not 0 < high - low < 2**31:
        raise NotImplementedError(f"random numbers from {low} to {high}")
    return ((two % (high - low)) * (2**32 % (high - low)) + one) % (high - low) + low
''',
    "attention": '''
def attention(operator, query, key, value, *given, **named):
    """The operator of a GPU; on another device what it computes, in the operator's layout."""
    if query.is_cuda:
        return operator(query, key, value, *given, **named)
    schema = operator.default._schema
    named |= zip((each.name for each in schema.arguments[3:]), given)
    if named.get("dropout_p"):
        raise NotImplementedError("attention with dropout, whose random numbers only the GPU has")
    bias, causal, scale = named.get("attn_bias"), named.get("is_causal", False), named.get("scale")
    result = F.scaled_dot_product_attention(query, key, value, bias, is_causal=causal, scale=scale)
    result = result.transpose(1, 2).contiguous().transpose(1, 2)
    return (result, *[None] * (len(schema.returns) - 1))
''',
    "load_weights": '''
def load_weights(path):
    """The tensors of a file, mapped and not copied: of safetensors, or a state dict that torch.save wrote."""
    if not os.path.exists(path):
        path = os.path.join(os.path.dirname(__file__), path)
    with open(path, "rb") as file:
        start = file.read(8)
        if start.startswith(b"PK"):
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        size = int.from_bytes(start, "little")
        header = json.loads(file.read(size))
    memory = torch.from_file(str(path), shared=False, size=os.path.getsize(path), dtype=torch.uint8)
    found = {}
    for name, each in header.items():
        if name != "__metadata__":
            start, end = (8 + size + at for at in each["data_offsets"])
            found[name] = memory[start:end].view(DTYPES[each["dtype"]]).view(each["shape"])
    return found
''',
}
_NEEDS = {
    **dict.fromkeys(("take", "put"), ("flat",)),
    **dict.fromkeys(("rand", "randn"), ("philox", "uniform")),
    "randint64": ("philox",),
}


def helpers_for(text: str) -> str:
    """The helpers that a program calls."""
    wanted = {name for name in HELPERS if re.search(rf"(?<![.\w]){name}\(", text)}
    wanted |= {inner for name in wanted for inner in _NEEDS.get(name, ())}
    return "\n\n".join(HELPERS[name].strip("\n") + "\n" for name in HELPERS if name in wanted)


CODES = {
    "complex64": "C64",
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""What safetensors calls a type."""
_ALIGNED = 64  # bytes to which the header is rounded up
_PIECE = 1 << 22


def write_weights(package: Package, path: Path) -> dict[str, str]:
    """Write the constants that the package contains. Return why others are missing, by name."""
    missing: dict[str, str] = {}
    found: list[tuple[CompiledConstant, Callable[[BinaryIO], None]]] = []
    for constant, copy in _sources(package):
        if copy is None:
            missing[constant.name] = "the package does not hold it"
        elif constant.dtype not in CODES:
            missing[constant.name] = f"its type {constant.dtype} has no code in safetensors"
        else:
            found.append((constant, copy))
    # With the widest types first, each constant is aligned for its type.
    found.sort(key=lambda each: -itemsize_of(each[0].dtype))
    header, at = {}, 0
    for constant, _ in found:
        count = reached(constant.shape, constant.stride)[1]
        end = at + count * itemsize_of(constant.dtype)
        header[constant.fqn] = {"dtype": CODES[constant.dtype], "shape": [count], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNED)
    with path.open("xb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _, copy in found:
            copy(out)
    return missing


@dataclass(frozen=True)
class ConstantValues:
    """The values of a constant of floats in `file`: how many, how many zeros, and the largest magnitude.

    `bad` is the index of the first NaN or +inf, None if there is none. -inf is not bad: masks contain it.
    """

    constant: CompiledConstant
    file: Path
    elements: int
    zeros: int
    largest: float
    bad: tuple[int, ...] | None = None
    bad_value: str = ""


def read_constants(package: Package, folder: Path, most_bytes: int) -> Iterator[ConstantValues]:
    """Write each constant of floats that the package contains to its own file, and describe its values.

    Omit constants of more than `most_bytes`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for constant, copy in _sources(package):
        code = {"float16": "e", "float32": "f", "float64": "d"}.get(constant.dtype, "")
        if copy is None or not code or not 0 < constant.bytes <= most_bytes:
            continue
        path = folder / f"{constant.index}.bin"
        with path.open("wb") as out:
            copy(out)
        data = path.read_bytes()
        values = struct.unpack(f"<{len(data) // itemsize_of(constant.dtype)}{code}", data)
        finite = [abs(value) for value in values if isfinite(value)]
        bad = next((at for at, value in enumerate(values) if isnan(value) or value == inf), None)
        yield ConstantValues(
            constant,
            path,
            elements=len(values),
            zeros=finite.count(0.0),
            largest=max(finite, default=0.0),
            bad=index_at(bad, constant.shape, constant.stride) if bad is not None else None,
            bad_value=str(values[bad]) if bad is not None else "",
        )


_MAGIC_BYTES = 8  # the number after appended weights by which the loader recognises them
_Copy = Callable[[BinaryIO], None]


def _sources(package: Package) -> Iterator[tuple[CompiledConstant, _Copy | None]]:
    """Yield each constant that is not folded, with a function that copies its bytes (None if unknown)."""
    constants = [each for each in package.constants if not each.folded]
    place, library, files = package.weights.place, package.library, package.files
    member, at = files.library, 0
    if place == "blob":
        member = files.weights_blob
    elif place == "appended" and library is not None and member is not None:
        at = member.size - (library.mapped_weights_bytes or 0) - _MAGIC_BYTES
    elif place == "in_library" and library is not None:
        at = library.constants_offset or 0
    elif place != "no_weights":
        member = None
    for constant in constants:
        size = reached(constant.shape, constant.stride)[1] * itemsize_of(constant.dtype)
        if place == "weight_files":
            yield constant, _from_file(package, constant, size)
            continue
        yield constant, _copied(package, member.name, at, size) if member is not None else None
        at += constant.bytes  # as the loader advances: rounded up to 64, unless all are on CUDA


def _from_file(package: Package, constant: CompiledConstant, size: int) -> _Copy | None:
    """Copy from a file of torch.save (`pickle_weights`), which holds the memory of one tensor in `data/0`."""
    name, *_, offset = package.weight_places.get(constant.fqn, ("", 0))
    member = next((each for each in package.listed_weights or () if each.name.endswith(f"/{name}")), None)
    if member is None or not isinstance(offset, int):
        return None
    try:
        with package.container.open(member.name) as stream, zipfile.ZipFile(stream) as file:
            data = [each for each in file.infolist() if each.filename.endswith("/data/0")]
            if len(data) != 1 or data[0].compress_type != zipfile.ZIP_STORED:
                return None
            with file.open(data[0]):
                start = stream.tell()
    except zipfile.BadZipFile:
        return None
    return _copied(package, member.name, start + offset * itemsize_of(constant.dtype), size)


def _copied(package: Package, member: str, at: int, size: int) -> _Copy:
    def copy(out: BinaryIO) -> None:
        with package.container.open(member) as stream:
            stream.seek(at)
            left = size
            while left:
                piece = stream.read(min(left, _PIECE))
                if not piece:
                    raise EOFError(f"{member} ends in the middle of the weights")
                out.write(piece)
                left -= len(piece)

    return copy
