"""Tensor core instructions (wgmma) as CUDA functions.

An instruction names each register of its sums, whose number depends on the shape. So the functions
are generated here, and replace the line `// multiply` of a source.
"""

PLACE = "// multiply\n"


def multiply(name: str, columns: int, is_held: bool = False, is_turned: bool = False) -> str:
    """sums[64 rows, columns] (+)= rows[64, 16] by lines of shared memory.

    Rows are in shared memory too, or in registers. A line is a column of the sums; transposed, it
    is one of the 16 that are summed over.
    """
    count = columns // 2  # of a thread
    sums = ", ".join(f"%{i}" for i in range(count))
    given = ", ".join(f'"+f"(sums[{i}])' for i in range(count))
    if is_held:
        kind, parts, flags = "const u32 (&rows)[4]", 4, f"1, 1, {int(is_turned)}"
        rows = "{" + ", ".join(f"%{count + i}" for i in range(parts)) + "}"
        given += " : " + ", ".join(f'"r"(rows[{i}])' for i in range(parts))
    else:
        kind, parts, flags = "u64 rows", 1, f"1, 1, 0, {int(is_turned)}"
        rows = f"%{count}"
        given += ' : "l"(rows)'
    lines, is_sum = count + parts, count + parts + 1
    return f"""
__device__ __forceinline__ void {name}(float (&sums)[{count}], {kind}, u64 lines, int is_sum) {{
  asm volatile(
      "{{.reg .pred p; setp.ne.b32 p, %{is_sum}, 0;"
      "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16"
      " {{{sums}}}, {rows}, %{lines}, p, {flags};}}"
      : {given}, "l"(lines), "r"(is_sum));
}}
"""
