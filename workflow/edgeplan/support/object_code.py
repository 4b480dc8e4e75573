"""Functions that numba compiles become images, which `support.machine_code` maps without a compiler.

A function is called by C through an entry of a few instructions, which turns an exception (a division by zero that
nobody expects) into a status. LLVM writes an ELF object; here its sections are laid out one behind the other and its
references resolved (System V ABI, AMD64 supplement, table 4.10). What is left are addresses of the C libraries' functions.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import llvmlite.binding as llvm  # type: ignore[import-untyped]  # it has no types
from numba import types
from numba.core.ccallback import CFunc
from numba.core.codegen import get_host_cpu_features
from numba.core.sigutils import normalize_signature

from edgeplan.errors import DeviceError
from edgeplan.support.machine_code import packed

_ELF, _RELOCATABLE, _X86_64 = b"\x7fELF\x02\x01\x01", 1, 62
_RELA, _NOBITS, _SYMBOLS = 4, 8, 2
_NOT_MAPPED = (7, 0x70000001)  # notes, and how to unwind the stack, which nobody does
_WRITE, _ALLOC = 1, 2
_ABSOLUTE, _COMMON = 0xFFF1, 0xFFF2
#: Relocations: an address; a distance; a distance to a stub that jumps; distances to a word that holds the address.
_R_64, _R_PC32, _R_PLT32, _R_GOT = 1, 2, 4, (9, 41, 42)
_STUB = b"\xff\x25"  # jmp [rip + distance]
_ENTRY = "entry."
_NEVER_CALLED = "NRT_MemInfo_call_dtor"  # frees what an array owns: those made of addresses own nothing


class Entry(NamedTuple):
    """An entry is a function that C calls.

    Attributes:
        function: compiled with the error model of numpy: divisions by zero give what the processor gives.
        signature: its types, of numba: integers of 32 and 64 bits, doubles and pointers.
        raised: what is returned where it raises an exception.
    """

    function: Callable[..., Any]
    signature: Any
    raised: int


def image_of(entries: Mapping[str, Entry], more: str = "") -> bytes:
    """Compile functions into one image.

    Args:
        entries: entries by the names that they are called by.
        more: further functions as LLVM assembly, whose names begin with `entry.`.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features: Any = get_host_cpu_features  # it has no types
    given = {"cpu": llvm.get_host_cpu_name(), "features": features()}
    machine = llvm.Target.from_default_triple().create_target_machine(opt=3, reloc="pic", codemodel="small", **given)
    module = llvm.parse_assembly(f'target triple = "{llvm.get_default_triple()}"\n{more}')
    for name, entry in entries.items():
        module.link_in(llvm.parse_assembly(_compiled(name, entry)))
    module.link_in(llvm.parse_assembly(f"define weak_odr void @{_NEVER_CALLED}(ptr %0) {{\n unreachable\n}}"))
    for one in (*module.functions, *module.global_variables):
        if not one.is_declaration and not one.name.startswith(_ENTRY):
            one.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    return linked(machine.emit_object(module))


def _compiled(name: str, entry: Entry) -> str:
    """Return a function and what it calls as LLVM assembly, with an entry for C."""
    made: Any = CFunc(entry.function, normalize_signature(entry.signature), {}, {"error_model": "numpy"})  # type: ignore[no-untyped-call]
    made.compile()
    inner = made.native_name.removeprefix("cfunc.")
    result, given = _type(entry.signature.return_type), [_type(one) for one in entry.signature.args]
    declared = ", ".join(["ptr", "ptr", *given])
    named = ", ".join(f"{kind} %a{k}" for k, kind in enumerate(given))
    text = f"""
define {result} @"entry.{name}"({named}) {{
  %result = alloca {result}
  %exception = alloca ptr
  store {result} 0, ptr %result
  %status = call i32 @"{inner}"({", ".join(["ptr %result", "ptr %exception", *([named] if named else [])])})
  %returned = load {result}, ptr %result
  %well = icmp eq i32 %status, 0
  %given = select i1 %well, {result} %returned, {result} {entry.raised}
  ret {result} %given
}}
"""
    module = llvm.parse_assembly(made.inspect_llvm())
    module.link_in(llvm.parse_assembly(f'declare i32 @"{inner}"({declared})\n{text}'))
    for one in module.functions:
        if not one.is_declaration and one.name == made.native_name:
            one.linkage = "internal"  # numba's own entry, which needs the interpreter
    return str(module)


def _type(kind: Any) -> str:
    known = {types.int64: "i64", types.int32: "i32", types.float64: "double"}
    return known.get(kind) or "ptr"


# Linking


class _Section(NamedTuple):
    kind: int
    flags: int
    offset: int
    size: int
    info: int
    align: int
    link: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int
    size: int


class _Reference(NamedTuple):
    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass
class _Layout:
    """A layout collects the bytes of an image.

    Attributes:
        code: all bytes; places: of sections in them.
        imports: word of each function of the C libraries; pointers: words that hold addresses of the image.
        words: word that holds the address of a symbol; stubs: that jump to a function of the C libraries.
    """

    code: bytearray = field(default_factory=bytearray)
    places: dict[int, int] = field(default_factory=dict)
    imports: dict[str, int] = field(default_factory=dict)
    pointers: list[tuple[int, int]] = field(default_factory=list)
    words: dict[int, int] = field(default_factory=dict)
    stubs: dict[str, int] = field(default_factory=dict)

    def add(self, content: bytes, align: int = 8) -> int:
        """Append bytes; return where they lie."""
        self.code += bytes(-len(self.code) % max(1, align))
        at = len(self.code)
        self.code += content
        return at


def linked(elf: bytes) -> bytes:
    """Return an image of an ELF object, whose global functions `entry.NAME` become the functions NAME."""
    kind, machine = struct.unpack_from("<HH", elf, 16)
    if not elf.startswith(_ELF) or (kind, machine) != (_RELOCATABLE, _X86_64):
        raise _refused(f"objects of machine {machine} are not linked here, those of x86-64 are")
    sections, symbols = _read(elf)
    layout = _Layout()
    mapped = [k for k, one in enumerate(sections) if one.flags & _ALLOC and one.kind not in _NOT_MAPPED]
    constant, changing = ([k for k in mapped if bool(sections[k].flags & _WRITE) == writes] for writes in (False, True))
    for k in constant:
        _place(layout, elf, sections, k)
    references = [one for k in mapped for one in _references(elf, sections, k)]
    for reference in references:
        _provide(layout, symbols, reference)
    executable = layout.add(b"", mmap.PAGESIZE)
    for k in changing:
        _place(layout, elf, sections, k)
    targets = _targets(layout, symbols)
    layout.pointers += [(word, targets[symbol]) for symbol, word in layout.words.items() if symbols[symbol].section]
    for one in references:
        _resolve(layout, symbols, targets, one)
    head = {
        "bytes": max(mmap.PAGESIZE, len(layout.code)),
        "executable": executable,
        "functions": {symbols[k].name[len(_ENTRY) :]: at for k, at in targets.items() if symbols[k].name.startswith(_ENTRY)},
        "imports": layout.imports,
        "pointers": layout.pointers,
    }
    return packed(bytes(layout.code), head)


def _targets(layout: _Layout, symbols: list[_Symbol]) -> dict[int, int]:
    """Return the addresses of symbols in the image, by number; room is made for variables that have none."""
    found = {}
    for k, one in enumerate(symbols):
        if one.section == _COMMON:
            found[k] = layout.add(bytes(one.size), 16)
        elif one.section in layout.places:
            found[k] = layout.places[one.section] + one.value
    return found


def _resolve(layout: _Layout, symbols: list[_Symbol], targets: Mapping[int, int], reference: _Reference) -> None:
    """Write what a reference comes to."""
    section, offset, kind, symbol, addend = reference
    at, one = layout.places[section] + offset, symbols[symbol]
    if kind in _R_GOT:
        goal = layout.words[symbol]
    elif symbol in targets:
        goal = targets[symbol]
    elif one.name in layout.stubs:
        goal = layout.stubs[one.name]
    else:
        raise _refused(f"{one.name!r} lies in no section that is mapped")
    if kind == _R_64:
        layout.pointers.append((at, goal + addend))
    else:
        struct.pack_into("<i", layout.code, at, goal + addend - at)


def _refused(what: str) -> DeviceError:
    return DeviceError(what, where="compiled code of the runtime", next_step="run on x86-64, or report this with your numba")


def _read(elf: bytes) -> tuple[list[_Section], list[_Symbol]]:
    table, rows = struct.unpack_from("<Q", elf, 40)[0], struct.unpack_from("<H", elf, 60)[0]
    sections = []
    for k in range(rows):
        _, kind, flags, _, offset, size, link, info, align, _ = struct.unpack_from("<IIQQQQIIQQ", elf, table + 64 * k)
        sections.append(_Section(kind, flags, offset, size, info, align, link))
    own = next(one for one in sections if one.kind == _SYMBOLS)
    names = sections[own.link].offset
    symbols = []
    for k in range(own.size // 24):
        name, _, _, section, value, size = struct.unpack_from("<IBBHQQ", elf, own.offset + 24 * k)
        end = elf.index(b"\0", names + name)
        symbols.append(_Symbol(elf[names + name : end].decode(), section, value, size))
    return sections, symbols


def _place(layout: _Layout, elf: bytes, sections: list[_Section], k: int) -> None:
    one = sections[k]
    content = bytes(one.size) if one.kind == _NOBITS else elf[one.offset : one.offset + one.size]
    layout.places[k] = layout.add(content, one.align)


def _references(elf: bytes, sections: list[_Section], section: int) -> list[_Reference]:
    found = []
    for one in sections:
        if one.kind == _RELA and one.info == section:
            for at in range(one.offset, one.offset + one.size, 24):
                offset, info, addend = struct.unpack_from("<QQq", elf, at)
                found.append(_Reference(section, offset, info & 0xFFFFFFFF, info >> 32, addend))
    return found


def _provide(layout: _Layout, symbols: list[_Symbol], reference: _Reference) -> None:
    """Make the word or stub that a reference needs."""
    kind, symbol = reference.kind, reference.symbol
    one = symbols[symbol]
    if one.section == _ABSOLUTE or kind not in (_R_64, _R_PC32, _R_PLT32, *_R_GOT) or (kind == _R_64 and not one.section):
        raise _refused(f"references of kind {kind} to {one.name!r} are not known")
    if kind in _R_GOT and symbol not in layout.words:
        layout.words[symbol] = _word(layout, one)
    elif kind in (_R_PC32, _R_PLT32) and not one.section and one.name not in layout.stubs:
        word = _word(layout, one)
        at = layout.add(_STUB + bytes(4))
        struct.pack_into("<i", layout.code, at + 2, word - at - 6)
        layout.stubs[one.name] = at


def _word(layout: _Layout, symbol: _Symbol) -> int:
    if symbol.section:
        return layout.add(bytes(8))
    if symbol.name not in layout.imports:
        layout.imports[symbol.name] = layout.add(bytes(8))
    return layout.imports[symbol.name]
