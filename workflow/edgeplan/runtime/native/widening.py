"""Values of half the bytes (bf16) are widened to float32 by this function, as LLVM assembly: no rounding, bits are moved.

A block is read whole before its values are written, and blocks go upwards: so the values may take the place of their halves,
where these lie in the upper half of it.
"""

from __future__ import annotations

#: Values that are widened at once; it divides those of a page.
BLOCK = 64
_LANES = 16  # of a vector
_HALF_BITS = 16
_LANES_OF = range(0, BLOCK, _LANES)
_HALVES, _WHOLES = f"<{_LANES} x i16>", f"<{_LANES} x i32>"
_SHIFT = f"<{', '.join([f'i32 {_HALF_BITS}'] * _LANES)}>"
_READ = "\n".join(
    f"  %from{k} = getelementptr i16, ptr %source, i64 {k}\n  %half{k} = load {_HALVES}, ptr %from{k}, align 2"
    for k in _LANES_OF
)
_WRITTEN = "\n".join(
    f"  %wide{k} = zext {_HALVES} %half{k} to {_WHOLES}\n  %value{k} = shl {_WHOLES} %wide{k}, {_SHIFT}\n"
    f"  %to{k} = getelementptr i32, ptr %target, i64 {k}\n  store {_WHOLES} %value{k}, ptr %to{k}, align 4"
    for k in _LANES_OF
)

#: `widen` takes addresses of the halves and of the values, and how many there are, a multiple of `BLOCK`.
ASSEMBLY = f"""
define i64 @entry.widen(i64 %halves, i64 %values, i64 %count) {{
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
{_WRITTEN}
  %next = add i64 %at, {BLOCK}
  %more = icmp slt i64 %next, %count
  br i1 %more, label %block, label %done
done:
  ret i64 0
}}
"""
