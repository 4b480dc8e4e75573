#include "session.h"

std::unique_ptr<session::Session> session::open_memory(const std::string& folder, std::unique_ptr<Program>, const Options&) {
  throw Error{EP_FORMAT, "not yet", folder, ""};
}
