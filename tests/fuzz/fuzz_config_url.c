/* Any text as a URL, with a failing request for memory at any point: the first byte says which (0:
 * none). What is shown of a URL must not hold its password. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "config/url.h"
#include "driver.h"

size_t tp_fuzz_seed(uint8_t *data, size_t capacity)
{
    static const char text[] = "\0postgresql+a://b%40:c%2Fd@[::1]:5432/e?sslmode=f&g=%20";
    if (sizeof text - 1 > capacity) {
        return 0;
    }
    memcpy(data, text, sizeof text - 1);
    return sizeof text - 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tp_url url;
    tp_error error = {0};
    char text[4096];
    char shown[8192];
    char other[8192];
    if (size == 0 || size > sizeof text) {
        return 0;
    }
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    tp_mem_fail_after(data[0]);
    tp_status status = tp_url_parse(&url, text, &error);
    tp_mem_fail_after(0);
    if (status != TP_OK) {
        if (error.code != status || error.message[0] == '\0') {
            abort();
        }
        return 0;
    }
    (void)tp_url_option(&url, "sslmode", shown, sizeof shown);
    tp_url_describe(&url, shown, sizeof shown);
    /* It says the same of a URL without one: a password may also be what host and port look like. */
    char *password = url.password;
    url.password = NULL;
    tp_url_describe(&url, other, sizeof other);
    url.password = password;
    if (strcmp(shown, other) != 0) {
        abort();
    }
    tp_url_free(&url);
    return 0;
}
