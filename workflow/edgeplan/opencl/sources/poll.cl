/* How the lanes of two processors wait for each other through counters in fine-grained shared memory. */
#ifdef __opencl_c_atomic_scope_all_devices
#define SCOPE memory_scope_all_svm_devices
#else
#define SCOPE memory_scope_device
#endif

/* Return when a counter has reached a value; after so many looks without, set `gave_up`. Once it is set nothing waits. */
__kernel void wait_for(__global atomic_int *counter, int value, long most, __global atomic_int *gave_up)
{
    for (long looks = 0; looks < most; ++looks)
        if (atomic_load_explicit(counter, memory_order_acquire, SCOPE) >= value ||
            atomic_load_explicit(gave_up, memory_order_relaxed, SCOPE))
            return;
    atomic_store_explicit(gave_up, 1, memory_order_release, SCOPE);
}

__kernel void set_counter(__global atomic_int *counter, int value)
{
    atomic_store_explicit(counter, value, memory_order_release, SCOPE);
}

/* The one and then the other, in one launch: what runs between two kernels that are handed over. */
__kernel void hand_over(__global atomic_int *own, int own_value, __global atomic_int *counter, int value, long most,
                        __global atomic_int *gave_up)
{
    set_counter(own, own_value);
    wait_for(counter, value, most, gave_up);
}
