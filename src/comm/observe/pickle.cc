#include "comm/observe/pickle.h"

#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>

namespace braid::comm {

namespace {

using Json = nlohmann::ordered_json;

/// The opcodes are those of Python's pickletools: a stack machine that builds one value.
class Pickler {
 public:
  std::string run(const Json& value) && {
    text_ = "\x80\x02";  // PROTO 2
    put(value);
    text_ += '.';  // STOP
    return std::move(text_);
  }

 private:
  void little_endian(uint64_t value, int num_bytes) {
    for (int i = 0; i < num_bytes; ++i) text_ += static_cast<char>(value >> (8 * i) & 0xff);
  }
  void put_text(const std::string& text) {
    text_ += 'X';  // BINUNICODE
    little_endian(text.size(), 4);
    text_ += text;
  }
  void put_whole(int64_t value) {
    if (value >= INT32_MIN && value <= INT32_MAX) {
      text_ += 'J';  // BININT
      little_endian(static_cast<uint64_t>(value), 4);
    } else {
      text_ += "\x8a\x08";  // LONG1 of 8 bytes, two's complement
      little_endian(static_cast<uint64_t>(value), 8);
    }
  }
  void put_float(double value) {
    text_ += 'G';  // BINFLOAT, big-endian
    const auto bits = std::bit_cast<uint64_t>(value);
    for (int i = 7; i >= 0; --i) text_ += static_cast<char>(bits >> (8 * i) & 0xff);
  }
  void put_dict(const Json& value) {
    text_ += "}(";  // EMPTY_DICT, MARK
    for (const auto& [key, item] : value.items()) {
      put_text(key);
      put(item);
    }
    text_ += 'u';  // SETITEMS
  }
  void put_list(const Json& value) {
    text_ += "](";  // EMPTY_LIST, MARK
    for (const Json& item : value) put(item);
    text_ += 'e';  // APPENDS
  }
  void put(const Json& value) {
    if (value.is_object()) return put_dict(value);
    if (value.is_array()) return put_list(value);
    if (value.is_string()) return put_text(value.get_ref<const std::string&>());
    if (value.is_boolean()) return void(text_ += value.get<bool>() ? '\x88' : '\x89');
    if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)
      return put_float(static_cast<double>(value.get<uint64_t>()));
    if (value.is_number_integer()) return put_whole(value.get<int64_t>());
    if (value.is_number_float()) return put_float(value.get<double>());
    text_ += 'N';  // NONE
  }

  std::string text_;
};

}  // namespace

std::string pickled(const Json& value) { return Pickler().run(value); }

}  // namespace braid::comm
