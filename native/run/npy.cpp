#include "run.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdio>

using namespace run;

namespace {

constexpr char MAGIC[] = "\x93NUMPY";
constexpr std::size_t MAGIC_BYTES = 6, BEGIN_BYTES = 10, ALIGNMENT = 64, LONGEST_HEADER = 1 << 20;

// What files call types of elements; the first ones are the library's.
constexpr const char* TYPES[][2] = {{"<f4", "float32"}, {"<i4", "int32"},   {"<i8", "int64"},  {"|i1", "int8"},
                                    {"|u1", "uint8"},   {"|b1", "bool"},    {"<f8", "float64"}, {"<f2", "float16"},
                                    {"<u4", "uint32"},  {"<u8", "uint64"},  {"<i2", "int16"},  {"<u2", "uint16"},
                                    {"|O", "object"}};

[[noreturn]] void unread(const char* why, const char* file) {
  refuse(EP_INPUT, text("cannot read the inputs: %s", why), file, "write each with numpy.save(path, array)");
}

// Read so many bytes.
void read_whole(int from, void* to, std::size_t bytes, const char* file) {
  for (char* at = static_cast<char*>(to); bytes > 0;) {
    const ssize_t got = read(from, at, bytes);
    if (got < 0) unread(std::strerror(errno), file);
    if (got == 0) unread("it is cut short", file);
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
}

// The header of a file of an array, which its values follow.
const char* header_of(int from, const char* file) {
  unsigned char begin[BEGIN_BYTES + 2];
  read_whole(from, begin, BEGIN_BYTES, file);
  if (std::memcmp(begin, MAGIC, MAGIC_BYTES) != 0) unread("it is no .npy file", file);
  if (begin[6] != 1 && begin[6] != 2) unread(text("arrays of format %d.%d are not known", begin[6], begin[7]), file);
  std::size_t length = begin[8] | begin[9] << 8;
  if (begin[6] == 2) {
    read_whole(from, begin + BEGIN_BYTES, 2, file);
    length |= static_cast<std::size_t>(begin[10]) << 16 | static_cast<std::size_t>(begin[11]) << 24;
  }
  if (length > LONGEST_HEADER) unread("its header is too long", file);
  char* header = static_cast<char*>(held(std::calloc(length + 1, 1)));
  read_whole(from, header, length, file);
  return header;
}

// What stands behind a name in a header, a Python dictionary in one line.
const char* entry(const char* header, const char* name, const char* file) {
  const char* found = std::strstr(header, text("'%s':", name));
  if (found == nullptr) unread(text("its header names no %s", name), file);
  found += std::strlen(name) + 3;
  return found + std::strspn(found, " ");
}

const char* type_of(const char* header, const char* file) {
  const char* given = entry(header, "descr", file);
  const char* end = *given == '\'' ? std::strchr(given + 1, '\'') : nullptr;
  if (end == nullptr) unread("it holds records, not numbers", file);
  const char* type = text("%.*s", static_cast<int>(end - given - 1), given + 1);
  for (const auto& known : TYPES)
    if (std::strcmp(known[0], type) == 0) return known[1];
  return type;
}

// Axes as messages and headers have them, "1,3,224,224".
const char* axes_of(const ep_tensor_info& info, const char* between) {
  Text made;
  for (int axis = 0; axis < info.rank; ++axis)
    made.add("%s%lld", axis > 0 ? between : "", static_cast<long long>(info.dims[axis]));
  return made.ended();
}

const char* axes_of(const char* header, const char* file) {
  const char* given = entry(header, "shape", file);
  const char* end = *given == '(' ? std::strchr(given, ')') : nullptr;
  if (end == nullptr) unread("its header has no shape", file);
  Text made;
  for (++given; given < end; ++given)
    if (*given != ' ' && !(*given == ',' && given + 1 == end)) made.add("%c", *given);
  return made.ended();
}

}  // namespace

const char* run::described(const ep_tensor_info& info) {
  return text("%s[%s] named '%s'", info.dtype, axes_of(info, ","), info.name);
}

void run::read_array(const char* file, const ep_tensor_info& wanted, void* to) {
  const int from = open(file, O_RDONLY | O_CLOEXEC);
  if (from < 0) unread(std::strerror(errno), file);
  const char *header = header_of(from, file), *type = type_of(header, file), *axes = axes_of(header, file);
  if (std::strcmp(type, wanted.dtype) != 0 || std::strcmp(axes, axes_of(wanted, ",")) != 0)
    refuse(EP_INPUT, text("input '%s' is %s[%s]", wanted.name, type, axes), file,
           text("correct the input: expected %s", described(wanted)));
  if (std::strncmp(entry(header, "fortran_order", file), "False", 5) != 0)
    unread("its elements lie column by column: make it numpy.ascontiguousarray(array)", file);
  read_whole(from, to, wanted.bytes, file);
  close(from);
}

namespace {

[[noreturn]] void unwritten(const char* path) {
  const char* why = std::strerror(errno);
  refuse(EP_ERROR, text("cannot write the outputs: %s", why), path, "name another folder with -o, or make room");
}

const char* header_of(const ep_tensor_info& info) {
  const char* type = TYPES[0][0];
  for (const auto& known : TYPES)
    if (std::strcmp(known[1], info.dtype) == 0) type = known[0];
  Text made;
  const char* one = info.rank == 1 ? "," : "";
  made.add("{'descr': '%s', 'fortran_order': False, 'shape': (%s%s), }", type, axes_of(info, ", "), one);
  while ((BEGIN_BYTES + made.length + 1) % ALIGNMENT != 0) made.add(" ");
  return made.add("\n%c", 0).from;
}

void write_whole(int file, const void* from, std::size_t bytes, const char* path) {
  const char* at = static_cast<const char*>(from);
  for (ssize_t written; bytes > 0; at += written, bytes -= static_cast<std::size_t>(written)) {
    written = write(file, at, bytes);
    if (written <= 0) unwritten(path);
  }
}

}  // namespace

void run::require_folder(const char* folder) {
  if (mkdir(folder, 0777) != 0 && errno != EEXIST) unwritten(folder);
  struct stat status;
  if (stat(folder, &status) != 0) unwritten(folder);
  errno = ENOTDIR;
  if (!S_ISDIR(status.st_mode) || access(folder, W_OK | X_OK) != 0) unwritten(folder);
}

const char* run::write_array(const char* folder, const ep_tensor_info& info, const void* values) {
  Text name;
  for (const char* at = info.name; *at != 0; ++at)
    name.add(std::isalnum(static_cast<unsigned char>(*at)) || std::strchr("_.-~", *at) != nullptr ? "%c" : "%%%02X",
             static_cast<unsigned char>(*at));
  name.add("%c", 0);
  const char* path = text("%s/%s.npy", folder, name.from);
  const char* unfinished = text("%s/.%s.npy.%d.tmp", folder, name.from, static_cast<int>(getpid()));
  const int file = open(unfinished, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) unwritten(path);
  const char* header = header_of(info);
  const std::size_t length = std::strlen(header);
  const unsigned char begin[] = {1, 0, static_cast<unsigned char>(length), static_cast<unsigned char>(length >> 8)};
  write_whole(file, MAGIC, MAGIC_BYTES, path);
  write_whole(file, begin, sizeof begin, path);
  write_whole(file, header, length, path);
  write_whole(file, values, info.bytes, path);
  if (close(file) != 0 || rename(unfinished, path) != 0) unwritten(path);
  return path;
}
