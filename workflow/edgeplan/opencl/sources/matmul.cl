/* Products of matrices that lie anywhere: sizes and strides in elements of two batch axes, rows and columns. A work item computes
   R rows of T columns. Columns of the right operand follow each other (`matmul`), or the values that are summed over do in both
   (`matmul_dots`: queries times transposed keys), where it computes one column. */
#define MATMUL_PARAMETERS \
    __global float *arena, int left, int right, int output, int second, int rows, int columns, int inner, int left0, int left1, \
    int left_row, int left_inner, int right0, int right1, int right_inner, int right_column, int out0, int out1, int out_row, \
    int out_column

__kernel void matmul(MATMUL_PARAMETERS)
{
    int column = get_global_id(0) * T, first_row = get_global_id(1) * R, batch = get_global_id(2);
    if (column >= columns || first_row >= rows)
        return;
    __global const float *a = arena + left + batch / second * left0 + batch % second * left1;
    __global const float *b = arena + right + batch / second * right0 + batch % second * right1 + column;
    FLOATV sum[R][N];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int n = 0; n < N; ++n)
            sum[r][n] = 0.0f;
    int whole = column + T <= columns;
    for (int k = 0; k < inner; ++k, b += right_inner) {
        FLOATV factor[N];
#pragma unroll
        for (int n = 0; n < N; ++n)
            factor[n] = whole ? VLOAD(b + n * V) : load_first(b + n * V, columns - column - n * V);
#pragma unroll
        for (int r = 0; r < R; ++r) {
            FLOATV x = a[min(first_row + r, rows - 1) * left_row + k * left_inner];
#pragma unroll
            for (int n = 0; n < N; ++n)
                sum[r][n] += x * factor[n];
        }
    }
    __global float *c = arena + output + batch / second * out0 + batch % second * out1;
    for (int r = 0; r < R && first_row + r < rows; ++r)
        for (int n = 0; n < N; ++n) {
            float values[V];
            VSTORE(sum[r][n], values);
            for (int i = 0; i < V && column + n * V + i < columns; ++i)
                c[(first_row + r) * out_row + (column + n * V + i) * out_column] = values[i];
        }
}

__kernel void matmul_dots(MATMUL_PARAMETERS)
{
    int column = get_global_id(0), first_row = get_global_id(1) * R, batch = get_global_id(2);
    if (column >= columns || first_row >= rows)
        return;
    __global const float *a = arena + left + batch / second * left0 + batch % second * left1;
    __global const float *b = arena + right + batch / second * right0 + batch % second * right1 + column * right_column;
    FLOATV sum[R];
#pragma unroll
    for (int r = 0; r < R; ++r)
        sum[r] = 0.0f;
    for (int k = 0; k < inner; k += V) {
        FLOATV factor = load_first(b + k, inner - k);
#pragma unroll
        for (int r = 0; r < R; ++r)
            sum[r] += load_first(a + min(first_row + r, rows - 1) * left_row + k, inner - k) * factor;
    }
    __global float *c = arena + output + batch / second * out0 + batch % second * out1;
    for (int r = 0; r < R && first_row + r < rows; ++r) {
        float values[V], total = 0.0f;
        VSTORE(sum[r], values);
        for (int i = 0; i < V; ++i)
            total += values[i];
        c[(first_row + r) * out_row + column * out_column] = total;
    }
}
