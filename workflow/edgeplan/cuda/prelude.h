/* The part of OpenCL C 1.2 that the kernels use, in CUDA C++: it goes before `common.h` where NVRTC compiles them. Vectors are
   of four floats. Functions without a qualifier are the device's (--device-as-default-execution-space). */
#define __kernel extern "C" __global__
#define __global
#define __local __shared__
#define INFINITY __int_as_float(0x7f800000)
#define FLT_MAX 3.402823466e+38f
#define CLK_LOCAL_MEM_FENCE 0
typedef unsigned int uint;

__forceinline__ int get_local_id(int axis) { return axis == 0 ? threadIdx.x : axis == 1 ? threadIdx.y : threadIdx.z; }
__forceinline__ int get_group_id(int axis) { return axis == 0 ? blockIdx.x : axis == 1 ? blockIdx.y : blockIdx.z; }
__forceinline__ int get_local_size(int axis) { return axis == 0 ? blockDim.x : axis == 1 ? blockDim.y : blockDim.z; }
__forceinline__ int get_num_groups(int axis) { return axis == 0 ? gridDim.x : axis == 1 ? gridDim.y : gridDim.z; }
__forceinline__ int get_global_id(int axis) { return get_group_id(axis) * get_local_size(axis) + get_local_id(axis); }
__forceinline__ int get_global_size(int axis) { return get_num_groups(axis) * get_local_size(axis); }
__forceinline__ void barrier(int) { __syncthreads(); }

struct mask4 {
    bool x, y, z, w;
};
struct __align__(16) vec4 {
    float x, y, z, w;
    vec4() = default;
    __forceinline__ vec4(float all) : x(all), y(all), z(all), w(all) {}
    __forceinline__ vec4(float a, float b, float c, float d) : x(a), y(b), z(c), w(d) {}
};
#define float4 vec4

#define OPERATOR(op) \
    __forceinline__ vec4 operator op(vec4 a, vec4 b) { return vec4(a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w); } \
    __forceinline__ vec4 operator op(vec4 a, float b) { return a op vec4(b); } \
    __forceinline__ vec4 operator op(float a, vec4 b) { return vec4(a) op b; } \
    __forceinline__ vec4 &operator op##=(vec4 &a, vec4 b) { return a = a op b; } \
    __forceinline__ vec4 &operator op##=(vec4 &a, float b) { return a = a op vec4(b); }
OPERATOR(+)
OPERATOR(-)
OPERATOR(*)
OPERATOR(/)
__forceinline__ vec4 operator-(vec4 a) { return vec4(-a.x, -a.y, -a.z, -a.w); }
__forceinline__ mask4 operator>(vec4 a, float b) { return mask4{a.x > b, a.y > b, a.z > b, a.w > b}; }

#define FUNCTION(name, of) \
    __forceinline__ vec4 name(vec4 a) { return vec4(of(a.x), of(a.y), of(a.z), of(a.w)); }
FUNCTION(exp, expf)
FUNCTION(expm1, expm1f)
FUNCTION(log, logf)
FUNCTION(log1p, log1pf)
FUNCTION(sqrt, sqrtf)
FUNCTION(tanh, tanhf)
FUNCTION(erf, erff)
FUNCTION(fabs, fabsf)
FUNCTION(floor, floorf)

#define FUNCTION_OF_TWO(name, of) \
    __forceinline__ vec4 name(vec4 a, vec4 b) { return vec4(of(a.x, b.x), of(a.y, b.y), of(a.z, b.z), of(a.w, b.w)); } \
    __forceinline__ vec4 name(vec4 a, float b) { return name(a, vec4(b)); }
FUNCTION_OF_TWO(fmin, fminf)
FUNCTION_OF_TWO(fmax, fmaxf)
FUNCTION_OF_TWO(min, fminf)
FUNCTION_OF_TWO(max, fmaxf)
FUNCTION_OF_TWO(pow, powf)

__forceinline__ vec4 select(vec4 no, vec4 yes, mask4 which)
{
    return vec4(which.x ? yes.x : no.x, which.y ? yes.y : no.y, which.z ? yes.z : no.z, which.w ? yes.w : no.w);
}
__forceinline__ float clamp(float a, float low, float high) { return fminf(fmaxf(a, low), high); }
__forceinline__ int clamp(int a, int low, int high) { return min(max(a, low), high); }

/* Sixteen bytes at once where they are aligned, which most are. */
__forceinline__ vec4 vload4(int at, const float *from)
{
    from += 4 * at;
    if (((size_t)from & 15) == 0)
        return *(const vec4 *)from;
    return vec4(from[0], from[1], from[2], from[3]);
}
#define ALIGNED(from) (*(const vec4 *)(from))
__forceinline__ void vstore4(vec4 value, int at, float *to)
{
    to += 4 * at;
    if (((size_t)to & 15) == 0) {
        *(vec4 *)to = value;
        return;
    }
    to[0] = value.x, to[1] = value.y, to[2] = value.z, to[3] = value.w;
}
