// Files of arrays as NumPy writes them: versions 1 and 2, little-endian, rows one behind the other.
#pragma once

#include "../include/edgeplan.h"
#include "process.h"

namespace run {

// An input as messages name it: float32[1,3,224,224] named 'input'.
const char* described(const ep_tensor_info& info);

// Read the values of a file. Ends the process where it holds none, or others than are wanted.
void read_array(const char* file, const ep_tensor_info& wanted, void* to);

// A folder to write to, made if it is not there; ends the process where nothing can be written there.
void require_folder(const char* folder);

// Write an output to FOLDER/NAME.npy, at once; in the name all but letters, digits and "_.-~" are as in %2F. Its path.
const char* write_array(const char* folder, const ep_tensor_info& info, const void* values);

}  // namespace run
