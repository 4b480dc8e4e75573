/* Softmax of rows of `size` values, `inner` elements from one to the next; its logarithm where asked for. */
__kernel void softmax(
    __global const float *from, int input, __global float *to, int output, int size, int inner, int logarithm)
{
    int x = get_global_id(0), place = get_global_id(1) * size * inner + x;
    if (x >= inner || get_global_id(2) > 0)
        return;
    from += input + place;
    to += output + place;
    float most = -FLT_MAX, sum = 0.0f;
    for (int i = 0; i < size; ++i)
        most = fmax(most, from[i * inner]);
    for (int i = 0; i < size; ++i)
        sum += exp(from[i * inner] - most);
    float share = 1.0f / sum, less = most + log(sum);
    for (int i = 0; i < size; ++i)
        to[i * inner] = logarithm ? from[i * inner] - less : exp(from[i * inner] - most) * share;
}
