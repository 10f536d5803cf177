#include "group/wire.h"

#include <algorithm>
#include <cstring>

namespace braid::group {

namespace {

// "BRAIDST" and the protocol's version: two versions never get as far as a proof.
constexpr uint64_t kMagic = 0x0254'5344'4941'5242;

class Writer {
 public:
  explicit Writer(FrameType type) {
    bytes_.append(sizeof(uint32_t), '\0');  // the length, once it is known
    bytes_.push_back(static_cast<char>(type));
  }
  Writer& number(uint64_t value, int width) {
    for (int i = 0; i < width; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
    return *this;
  }
  Writer& raw(std::span<const std::byte> bytes) {
    bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return *this;
  }
  Writer& text(std::string_view text, uint32_t limit) {
    text = text.substr(0, limit);
    number(text.size(), 4);
    bytes_.append(text);
    return *this;
  }
  std::string take() {
    const uint32_t body = static_cast<uint32_t>(bytes_.size()) - kFrameHeadBytes;
    for (int i = 0; i < 4; ++i) bytes_[static_cast<size_t>(i)] = static_cast<char>(body >> (8 * i));
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
};

// Reads zeros past the end and remembers it, so that a decoder checks once, at its end.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  uint64_t number(size_t width) {
    const auto bytes = take(width);
    uint64_t value = 0;
    for (size_t i = 0; i < bytes.size(); ++i) value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
    return value;
  }
  template <size_t kBytes = 32>
  std::array<std::byte, kBytes> array() {
    std::array<std::byte, kBytes> value{};
    const auto bytes = take(value.size());
    std::copy(bytes.begin(), bytes.end(), value.begin());
    return value;
  }
  std::string text(uint32_t limit) {
    const uint64_t length = number(4);
    if (length > limit) is_bad_ = true;
    const auto bytes = take(is_bad_ ? 0 : length);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  bool is_whole() const { return !is_bad_ && rest_.empty(); }

 private:
  std::span<const std::byte> take(size_t count) {
    if (count > rest_.size()) {
      is_bad_ = true;
      rest_ = {};
      return {};
    }
    const auto taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }
  std::span<const std::byte> rest_;
  bool is_bad_ = false;
};

Status malformed(const char* what, size_t bytes) {
  return invalid_argument("control protocol: malformed {} of {} bytes", what, bytes);
}

}  // namespace

Frame parse_frame(std::span<const std::byte> bytes, uint32_t max_body_bytes, uint32_t seal_bytes) {
  Frame frame;
  if (bytes.size() < kFrameHeadBytes) return frame;
  Reader head(bytes.first(kFrameHeadBytes));
  const uint64_t body_bytes = head.number(4);
  const auto type = static_cast<uint8_t>(head.number(1));
  if (type == 0 || type > kLastFrameType || body_bytes > max_body_bytes) {
    frame.state = Frame::State::kGarbage;
    return frame;
  }
  if (bytes.size() - kFrameHeadBytes < body_bytes + seal_bytes) return frame;
  return {Frame::State::kComplete, static_cast<FrameType>(type),
          bytes.subspan(kFrameHeadBytes, body_bytes), kFrameHeadBytes + body_bytes + seal_bytes};
}

size_t first_frame_bytes(std::string_view frames) {
  const auto bytes = std::as_bytes(std::span(frames));
  return kFrameHeadBytes + Reader(bytes.first(kFrameHeadBytes)).number(4);
}

std::string encode(const Challenge& challenge) {
  return Writer(FrameType::kChallenge).number(kMagic, 8).raw(challenge.nonce).take();
}

std::string encode(const Hello& hello) {
  return Writer(FrameType::kHello)
      .raw(hello.nonce)
      .text(hello.job_id, kMaxJobIdBytes)
      .number(hello.rank, 4)
      .number(hello.size, 4)
      .raw(hello.process)
      .number(static_cast<uint64_t>(hello.purpose), 1)
      .raw(hello.proof)
      .take();
}

std::string encode(const Welcome& welcome) {
  return Writer(FrameType::kWelcome).raw(welcome.proof).take();
}

std::string encode(const Refusal& refusal) {
  return Writer(FrameType::kRefusal)
      .number(static_cast<uint64_t>(refusal.kind), 1)
      .text(refusal.text, kMaxRefusalBytes)
      .raw(refusal.proof)
      .take();
}

std::string encode(FrameType type, const RankNote& note) {
  return Writer(type).number(note.rank, 4).take();
}

std::string encode_ready() { return Writer(FrameType::kReady).take(); }

std::string encode(const Blob& blob) {
  return Writer(FrameType::kBlob)
      .number(blob.sequence, 8)
      .number(blob.rank, 4)
      .text(blob.topic, kMaxTopicBytes)
      .text(blob.bytes, kMaxBlobBytes)
      .take();
}

std::string encode(const News& news) {
  return Writer(FrameType::kNews)
      .number(static_cast<uint64_t>(news.code), 1)
      .number(news.rank, 4)
      .text(news.text, kMaxTextBytes)
      .take();
}

Result<Challenge> decode_challenge(std::span<const std::byte> body) {
  Reader in(body);
  const uint64_t magic = in.number(8);
  const Challenge challenge{in.array()};
  if (!in.is_whole() || magic != kMagic) return malformed("challenge", body.size());
  return challenge;
}

Result<Hello> decode_hello(std::span<const std::byte> body) {
  Reader in(body);
  Hello hello;
  hello.nonce = in.array();
  hello.job_id = in.text(kMaxJobIdBytes);
  hello.rank = static_cast<uint32_t>(in.number(4));
  hello.size = static_cast<uint32_t>(in.number(4));
  hello.process = in.array<std::tuple_size_v<ProcessMark>>();
  const uint64_t purpose = in.number(1);
  hello.proof = in.array();
  const auto last = static_cast<uint64_t>(Purpose::kServe);
  if (!in.is_whole() || purpose < 1 || purpose > last) return malformed("hello", body.size());
  hello.purpose = static_cast<Purpose>(purpose);
  return hello;
}

Result<Welcome> decode_welcome(std::span<const std::byte> body) {
  Reader in(body);
  const Welcome welcome{in.array()};
  if (!in.is_whole()) return malformed("welcome", body.size());
  return welcome;
}

Result<Refusal> decode_refusal(std::span<const std::byte> body) {
  Reader in(body);
  Refusal refusal;
  const uint64_t kind = in.number(1);
  refusal.text = in.text(kMaxRefusalBytes);
  refusal.proof = in.array();
  if (!in.is_whole() || kind < 1 || kind > static_cast<uint64_t>(RefusalKind::kOwn))
    return malformed("refusal", body.size());
  refusal.kind = static_cast<RefusalKind>(kind);
  return refusal;
}

Result<RankNote> decode_rank_note(std::span<const std::byte> body) {
  Reader in(body);
  const RankNote note{static_cast<uint32_t>(in.number(4))};
  if (!in.is_whole()) return malformed("rank note", body.size());
  return note;
}

Result<Blob> decode_blob(std::span<const std::byte> body) {
  Reader in(body);
  Blob blob;
  blob.sequence = in.number(8);
  blob.rank = static_cast<uint32_t>(in.number(4));
  blob.topic = in.text(kMaxTopicBytes);
  blob.bytes = in.text(kMaxBlobBytes);
  if (!in.is_whole()) return malformed("blob", body.size());
  return blob;
}

Result<News> decode_news(std::span<const std::byte> body) {
  Reader in(body);
  News news;
  const uint64_t code = in.number(1);
  news.rank = static_cast<uint32_t>(in.number(4));
  news.text = in.text(kMaxTextBytes);
  if (!in.is_whole() || code == 0 || code > static_cast<uint64_t>(Code::kInternal))
    return malformed("news", body.size());
  news.code = static_cast<Code>(code);
  return news;
}

}  // namespace braid::group
