#include "group/frame_seal.h"

#include <openssl/evp.h>

#include <array>

#include "base/check.h"
#include "group/own_crypto.h"
#include "group/wire.h"

namespace braid::group {

struct FrameSeal::State {
  EVP_CIPHER_CTX* context = EVP_CIPHER_CTX_new();
  uint64_t number = 0;
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { EVP_CIPHER_CTX_free(context); }
};

namespace {

using Nonce12 = std::array<unsigned char, 12>;

Nonce12 nonce_of(uint64_t number) {
  Nonce12 nonce{};
  for (size_t i = 0; i < sizeof number; ++i)
    nonce[4 + i] = static_cast<unsigned char>(number >> (8 * i));
  return nonce;
}

unsigned char* writable(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

// The key is set up; a null cipher and key keep it.
bool begin(EVP_CIPHER_CTX* context, uint64_t number, const unsigned char* head) {
  const Nonce12 nonce = nonce_of(number);
  int written = 0;
  return EVP_CipherInit_ex(context, nullptr, nullptr, nullptr, nonce.data(), -1) == 1 &&
         EVP_CipherUpdate(context, nullptr, &written, head, kFrameHeadBytes) == 1;
}

// GCM works in place, and its last step adds no bytes.
bool work(EVP_CIPHER_CTX* context, unsigned char* body, size_t bytes) {
  int written = 0;
  return bytes == 0 ||
         EVP_CipherUpdate(context, body, &written, body, static_cast<int>(bytes)) == 1;
}

}  // namespace

FrameSeal::FrameSeal(std::string_view key, Use use) : state_(std::make_unique<State>()) {
  BRAID_CHECK(state_->context != nullptr && key.size() == kSealKeyBytes, "a key of {} bytes",
              key.size());
  EVP_CIPHER* const cipher = EVP_CIPHER_fetch(own_crypto(), "AES-256-GCM", nullptr);
  const int set = EVP_CipherInit_ex(state_->context, cipher, nullptr,
                                    reinterpret_cast<const unsigned char*>(key.data()), nullptr,
                                    use == Use::kSeal ? 1 : 0);
  EVP_CIPHER_free(cipher);  // the context keeps a reference
  BRAID_CHECK(set == 1, "libcrypto has no AES-256-GCM");
}
FrameSeal::~FrameSeal() = default;
FrameSeal::FrameSeal(FrameSeal&&) noexcept = default;
FrameSeal& FrameSeal::operator=(FrameSeal&&) noexcept = default;

void FrameSeal::seal(std::string_view frame, std::string& out) {
  const size_t at = out.size(), body_bytes = frame.size() - kFrameHeadBytes;
  out.append(frame).append(kSealBytes, '\0');
  auto* const head = reinterpret_cast<unsigned char*>(out.data() + at);
  unsigned char* const body = head + kFrameHeadBytes;
  EVP_CIPHER_CTX* const context = state_->context;
  int written = 0;
  const bool is_sealed =
      begin(context, state_->number, head) && work(context, body, body_bytes) &&
      EVP_CipherFinal_ex(context, body + body_bytes, &written) == 1 &&
      EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kSealBytes, body + body_bytes) == 1;
  BRAID_CHECK(is_sealed, "AES-256-GCM refused a frame of {} bytes", frame.size());
  ++state_->number;
}

bool FrameSeal::open(std::span<std::byte> frame) {
  if (frame.size() < kFrameHeadBytes + kSealBytes) return false;
  const std::span<std::byte> body =
      frame.subspan(kFrameHeadBytes, frame.size() - kFrameHeadBytes - kSealBytes);
  std::byte* const seal = frame.data() + frame.size() - kSealBytes;
  EVP_CIPHER_CTX* const context = state_->context;
  int written = 0;
  const bool is_ours = begin(context, state_->number, writable(frame.data())) &&
                       work(context, writable(body.data()), body.size()) &&
                       EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, kSealBytes, seal) == 1 &&
                       EVP_CipherFinal_ex(context, writable(seal), &written) == 1;
  if (is_ours) ++state_->number;
  return is_ours;
}

}  // namespace braid::group
