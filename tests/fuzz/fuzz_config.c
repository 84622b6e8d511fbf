/* Any text as a configuration, with a failing request for memory at any point: the first byte says
 * which (0: none). Errors must carry a position inside the text. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "config/config.h"
#include "driver.h"

/* Every kind of field once. */
size_t tp_fuzz_seed(uint8_t *data, size_t capacity)
{
    static const char text[] =
        "\0{\"targets\": {\"fc.1\": {\"input\": \"tuple[2]:0\", \"output\": \"tensor\"}, “层”: "
        "{}},\n"
        "\"all_xy\": true, \"ops\": [\"norm\", \"min\"], \"eps\": 1e-8, \"format\": [\"csv\",], // "
        "a\n"
        "\"ndigits\": 3, \"step_count_per_record\": 10, \"input_grad\": \"tensor\" /* b */，\n"
        "\"alert\": {\"rules\": [{\"rule_name\": \"AnomalyTurbulence\", \"args\": {\"threshold\": "
        "2,\n"
        "\"mode\": \"factor\"}}], \"inform\": {\"recipient\": \"email\", \"send_email_address\": "
        "\"a\",\n"
        "\"receive_email_address\": \"b\", \"smtp_server\": \"c\", \"smtp_port\": \"587\"}},\n"
        "\"journal\": {\"wait_ms\": 5}, \"module_ranks\": \"1, 2\", \"start_step\": 1, # c\n"
        "\"cc_distribution\": {\"enable\": true, \"cc_codeline\": [\"d\"]}, \"sa_order\": \"\",\n"
        "\"database\": {\"url\": \"mysql+a://b:c@d:1/e?f=g\", \"targets\": [\"h*\"]},\n"
        "\"append_output\": [\"Dec03_21-34-40\", \"Dec03_21-34-41\"]}";
    size_t size = sizeof text - 1;
    if (size > capacity) {
        return 0;
    }
    memcpy(data, text, size);
    return size;
}

/* A message in which a character is torn can't be shown by Python. */
static bool is_utf8(const char *text)
{
    while (*text != '\0') {
        unsigned char first = (unsigned char)*text++;
        int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc0 ? 1 : 0;
        if (first >= 0x80 && first < 0xc0) {
            return false;
        }
        for (; more > 0; more--) {
            if (((unsigned char)*text++ & 0xc0) != 0x80) {
                return false;
            }
        }
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tp_config config;
    tp_error error;
    memset(&error, 0, sizeof error);
    if (size == 0) {
        return 0;
    }
    setenv("TENSORPROBE_LOG_LEVEL", "4", 1); /* warnings are right here, and too many */
    tp_config_defaults(&config, (size & 1) != 0);
    tp_mem_fail_after(data[0]);
    tp_status status =
        tp_config_parse(&config, (const char *)data + 1, size - 1, "fuzz.json", &error);
    tp_mem_fail_after(0);
    if (status == TP_OK) {
        if (config.target_count == 0 || config.op_count == 0 || config.formats == 0) {
            abort();
        }
        tp_config_free(&config);
        return 0;
    }
    uint32_t lines = 1;
    for (size_t i = 1; i < size; i++) {
        lines += data[i] == '\n';
    }
    if (error.code != status || error.message[0] == '\0' || !is_utf8(error.field) ||
        !is_utf8(error.message)) {
        abort();
    }
    if (status == TP_ERR_CONFIG && (error.line == 0 || error.line > lines || error.column == 0)) {
        abort();
    }
    return 0;
}
