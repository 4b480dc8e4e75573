"""Functions of the C types of `mmap`, `mprotect` and `munmap` that hand out slots of a region, as LLVM assembly.

They run where the interpreter must not, and call the C library's for all that is not a slot.
"""

from __future__ import annotations

import mmap

from edgeplan.runtime.native.words import SLOT_BYTES, SLOTS

_READ_WRITE, _ALL = mmap.PROT_READ | mmap.PROT_WRITE, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
_ANONYMOUS, _DONTNEED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 4

#: `region` is the address of the slots, behind which a word for each says whether it is free (0), taken (1), or spent (2):
#: of other permissions now.
ASSEMBLY = f"""
@entry.region = dso_local global i64 0
declare i64 @mmap(i64, i64, i32, i32, i32, i64)
declare i32 @mprotect(i64, i64, i32)
declare i32 @munmap(i64, i64)
declare i32 @madvise(i64, i64, i32)

define i64 @slot_of(i64 %address) {{
  %region = load i64, ptr @entry.region
  %offset = sub i64 %address, %region
  %slot = udiv i64 %offset, {SLOT_BYTES}
  %inside = icmp ult i64 %slot, {SLOTS}
  %found = select i1 %inside, i64 %slot, i64 -1
  ret i64 %found
}}

define ptr @state_of(i64 %slot) {{
  %region = load i64, ptr @entry.region
  %states = add i64 %region, {SLOTS * SLOT_BYTES}
  %from = inttoptr i64 %states to ptr
  %place = getelementptr i64, ptr %from, i64 %slot
  ret ptr %place
}}

; the first free slot for what a kernel asks for, the system's answer for all else
define i64 @entry.map(i64 %address, i64 %size, i32 %permissions, i32 %flags, i32 %file, i64 %offset) {{
  %anywhere = icmp eq i64 %address, 0
  %slotted = icmp eq i64 %size, {SLOT_BYTES}
  %usual = icmp eq i32 %permissions, {_READ_WRITE}
  %anonymous = icmp eq i32 %flags, {_ANONYMOUS}
  %no_file = icmp eq i32 %file, -1
  %a = and i1 %anywhere, %slotted
  %b = and i1 %usual, %anonymous
  %c = and i1 %a, %b
  %wanted = and i1 %c, %no_file
  br i1 %wanted, label %look, label %other
look:
  %slot = phi i64 [ 0, %0 ], [ %after, %following ]
  %state = call ptr @state_of(i64 %slot)
  %swapped = cmpxchg ptr %state, i64 0, i64 1 acq_rel acquire
  %taken = extractvalue {{ i64, i1 }} %swapped, 1
  br i1 %taken, label %take, label %following
following:
  %after = add i64 %slot, 1
  %left = icmp ult i64 %after, {SLOTS}
  br i1 %left, label %look, label %other
take:
  %region = load i64, ptr @entry.region
  %distance = mul i64 %slot, {SLOT_BYTES}
  %found = add i64 %region, %distance
  ret i64 %found
other:
  %given = call i64 @mmap(i64 %address, i64 %size, i32 %permissions, i32 %flags, i32 %file, i64 %offset)
  ret i64 %given
}}

; nothing to do to write and execute, nor to write only, as asked for before a slot is given back; else the slot is spent
define i32 @entry.protect(i64 %address, i64 %size, i32 %permissions) {{
  %slot = call i64 @slot_of(i64 %address)
  %ours = icmp ne i64 %slot, -1
  br i1 %ours, label %look, label %other
look:
  %state = call ptr @state_of(i64 %slot)
  %held = load atomic i64, ptr %state acquire, align 8
  %taken = icmp eq i64 %held, 1
  %all = icmp eq i32 %permissions, {_ALL}
  %writing = icmp eq i32 %permissions, {_READ_WRITE}
  %usual = or i1 %all, %writing
  %nothing = and i1 %taken, %usual
  br i1 %nothing, label %done, label %spend
spend:
  store atomic i64 2, ptr %state release, align 8
  br label %other
other:
  %given = call i32 @mprotect(i64 %address, i64 %size, i32 %permissions)
  ret i32 %given
done:
  ret i32 0
}}

; pages go back to the system, as they would, and the slot can be taken again, with zeroed pages, as from the system
define i32 @entry.unmap(i64 %address, i64 %size) {{
  %slot = call i64 @slot_of(i64 %address)
  %ours = icmp ne i64 %slot, -1
  br i1 %ours, label %back, label %other
back:
  %advised = call i32 @madvise(i64 %address, i64 %size, i32 {_DONTNEED})
  %state = call ptr @state_of(i64 %slot)
  %swapped = cmpxchg ptr %state, i64 1, i64 0 acq_rel acquire
  ret i32 0
other:
  %given = call i32 @munmap(i64 %address, i64 %size)
  ret i32 %given
}}
"""  # noqa: S608  no SQL
