#include "group/own_crypto.h"

#include <openssl/conf.h>
#include <openssl/crypto.h>
#include <openssl/err.h>

#include "base/check.h"

namespace braid::group {

namespace {

// What the machine says of algorithms (FIPS) counts as in libcrypto's own context. That there is no
// such file is no error that the program's next call of libcrypto may find.
OSSL_LIB_CTX* make() {
  OSSL_LIB_CTX* const made = OSSL_LIB_CTX_new();
  BRAID_CHECK(made != nullptr, "libcrypto has no memory");
  ERR_set_mark();
  char* const file = CONF_get1_default_config_file();
  if (file != nullptr) (void)OSSL_LIB_CTX_load_config(made, file);
  OPENSSL_free(file);
  ERR_pop_to_mark();
  return made;
}

}  // namespace

OSSL_LIB_CTX* own_crypto() {
  static OSSL_LIB_CTX* const kOwn = make();
  return kOwn;
}

}  // namespace braid::group
