/* Rows of `size` values to mean 0 and variance 1, then times a factor and plus a summand of each place. Weights: the factors, if
   `scales`, then the summands, if `shifts`, `apart` elements from each other. */
__kernel void layer_norm(
    __global float *arena, __global const float *weights, int input, int output, int rows, int size, float epsilon, int scales,
    int shifts, int apart)
{
    int row = get_global_id(0);
    if (row >= rows || get_global_id(1) > 0 || get_global_id(2) > 0)
        return;
    __global const float *from = arena + input + row * size;
    __global float *to = arena + output + row * size;
    float sum = 0.0f, squares = 0.0f;
    for (int i = 0; i < size; ++i)
        sum += from[i];
    float mean = sum / size;
    for (int i = 0; i < size; ++i)
        squares += (from[i] - mean) * (from[i] - mean);
    float factor = 1.0f / sqrt(squares / size + epsilon);
    for (int i = 0; i < size; i += V) {
        int count = size - i;
        FLOATV x = (load_first(from + i, count) - mean) * factor;
        if (scales)
            x *= load_first(weights + i, count);
        if (shifts)
            x += load_first(weights + apart + i, count);
        if (count >= V) {
            VSTORE(x, to + i);
        } else {
            float values[V];
            VSTORE(x, values);
            for (int j = 0; j < count; ++j)
                to[i + j] = values[j];
        }
    }
}
