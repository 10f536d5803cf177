// The option registry as Python sees it, and facts about this build.
#include <nanobind/stl/string.h>

#include "base/config.h"
#include "coll/reduce/reduce.h"
#include "comm.h"
#include "errors.h"
#include "group/token.h"

namespace nb = nanobind;

namespace braid::python {

namespace {

const char* type_text(OptionType type) {
  switch (type) {
    case OptionType::kString: return "text";
    case OptionType::kBool: return "bool";
    case OptionType::kInteger: return "integer";
    case OptionType::kBytes: return "bytes";
    case OptionType::kDuration: return "duration";
  }
  return "unknown";
}

nb::list options() {
  nb::list list;
  for (const Option& option : all_options())
    list.append(nb::make_tuple(option.name, type_text(option.type), option.default_value,
                               option.help, option.audience == OptionAudience::kUsers));
  return list;
}

// What processes of this user on this host share and nobody else can read.
std::string user_secret() {
  // No port: who asks binds it to something of his own.
  return value_or_raise(group::choose_token("", true, "", 0));
}

}  // namespace

void register_options(nb::module_& module) {
  module.attr("__version__") = BRAID_VERSION;
  module.attr("build_type") = BRAID_BUILD_TYPE;
  module.def("options", &options);
  module.def("user_secret", &user_secret);
  module.def("reduce_isa", [] { return coll::reduce_isa(); });
}

}  // namespace braid::python
