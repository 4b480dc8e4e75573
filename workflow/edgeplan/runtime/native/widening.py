"""Values of half the bytes (bf16, float16) are widened to float32 by these functions, as LLVM assembly: nothing is rounded.

Bits of bf16 are moved. Those of float16 are moved, and their exponent is made that of a float32; what is below its smallest
normal number is an integer times 2^-24.

A block is read whole before its values are written, and blocks go upwards: so the values may take the place of their halves,
where these lie in the upper half of it.
"""

from __future__ import annotations

#: Values that are widened at once; it divides those of a page.
BLOCK = 64
_LANES = 16  # of a vector
_HALF_BITS = 16
_LANES_OF = range(0, BLOCK, _LANES)
_HALVES, _WHOLES, _FLOATS, _TRUTHS = (f"<{_LANES} x {kind}>" for kind in ("i16", "i32", "float", "i1"))
#: Of float16, moved to where they stand in a float32: the least infinity, the least normal number, and what exponents lack.
_INFINITY, _NORMAL, _APART, _APART_OF_INFINITY = 31 << 23, 1 << 23, (127 - 15) << 23, (255 - 31) << 23
_FRACTION_BITS, _SIGN, _REST = 13, 0x8000, 0x7FFF
_SUBNORMAL = "0x3E70000000000000"  # 2^-24


def _all(value: int | str, kind: str = "i32") -> str:
    """Return a vector of one value."""
    return f"<{', '.join([f'{kind} {value}'] * _LANES)}>"


_READ = "\n".join(
    f"  %from{k} = getelementptr i16, ptr %source, i64 {k}\n  %half{k} = load {_HALVES}, ptr %from{k}, align 2"
    for k in _LANES_OF
)
_WRITTEN = "\n".join(
    f"  %to{k} = getelementptr i32, ptr %target, i64 {k}\n  store {_WHOLES} %value{k}, ptr %to{k}, align 4" for k in _LANES_OF
)
_WIDE = "\n".join(f"  %wide{k} = zext {_HALVES} %half{k} to {_WHOLES}" for k in _LANES_OF)
_OF_BF16 = "\n".join(f"  %value{k} = shl {_WHOLES} %wide{k}, {_all(_HALF_BITS)}" for k in _LANES_OF)
_OF_F16 = "\n".join(
    f"""  %sign{k} = and {_WHOLES} %wide{k}, {_all(_SIGN)}
  %above{k} = shl {_WHOLES} %sign{k}, {_all(_HALF_BITS)}
  %rest{k} = and {_WHOLES} %wide{k}, {_all(_REST)}
  %moved{k} = shl {_WHOLES} %rest{k}, {_all(_FRACTION_BITS)}
  %normal{k} = add {_WHOLES} %moved{k}, {_all(_APART)}
  %infinite{k} = add {_WHOLES} %moved{k}, {_all(_APART_OF_INFINITY)}
  %count{k} = sitofp {_WHOLES} %rest{k} to {_FLOATS}
  %small{k} = fmul {_FLOATS} %count{k}, {_all(_SUBNORMAL, "float")}
  %bits{k} = bitcast {_FLOATS} %small{k} to {_WHOLES}
  %isinfinite{k} = icmp uge {_WHOLES} %moved{k}, {_all(_INFINITY)}
  %issmall{k} = icmp ult {_WHOLES} %moved{k}, {_all(_NORMAL)}
  %finite{k} = select {_TRUTHS} %issmall{k}, {_WHOLES} %bits{k}, {_WHOLES} %normal{k}
  %size{k} = select {_TRUTHS} %isinfinite{k}, {_WHOLES} %infinite{k}, {_WHOLES} %finite{k}
  %value{k} = or {_WHOLES} %size{k}, %above{k}"""
    for k in _LANES_OF
)


def _function(kind: str, values: str) -> str:
    return f"""
define i64 @entry.widen_{kind}(i64 %halves, i64 %values, i64 %count) {{
  %none = icmp sle i64 %count, 0
  br i1 %none, label %done, label %block
block:
  %at = phi i64 [ 0, %0 ], [ %next, %block ]
  %halfway = shl i64 %at, 1
  %whole = shl i64 %at, 2
  %read = add i64 %halves, %halfway
  %write = add i64 %values, %whole
  %source = inttoptr i64 %read to ptr
  %target = inttoptr i64 %write to ptr
{_READ}
{_WIDE}
{values}
{_WRITTEN}
  %next = add i64 %at, {BLOCK}
  %more = icmp slt i64 %next, %count
  br i1 %more, label %block, label %done
done:
  ret i64 0
}}
"""


#: The functions take addresses of the halves and of the values, and how many there are, a multiple of `BLOCK`.
ASSEMBLY = _function("bf16", _OF_BF16) + _function("f16", _OF_F16)
