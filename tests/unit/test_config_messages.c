/* Every message of bad_configurations.txt, to the character, and the errors that need bytes which
 * such a file can't hold. */
#include <stdio.h>
#include <stdlib.h>

#include "config_fixture.h"

/* The text of a case, then a line with "=> LINE:COLUMN: …"; lines with "# " are titles. */
static void test_messages(void **state)
{
    char line[2048];
    char text[4096] = "";
    char expected[2100];
    int cases = 0;
    FILE *file = fopen(TP_UNIT_DIR "/bad_configurations.txt", "r");
    (void)state;
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "=> ", 3) == 0) {
            size_t length = strlen(text);
            text[length > 0 ? length - 1 : 0] = '\0';
            line[strlen(line) - 1] = '\0';
            snprintf(expected, sizeof expected, "t.json:%s", line + 3);
            assert_string_equal(read_bad(text), expected);
            text[0] = '\0';
            cases++;
        } else if (strncmp(line, "# ", 2) != 0 && (line[0] != '\n' || text[0] != '\0')) {
            assert_true(strlen(text) + strlen(line) < sizeof text);
            strcat(text, line);
        }
    }
    fclose(file);
    assert_true(cases >= 250);
}

static void check_bytes(const char *text, size_t size, const char *message)
{
    tp_config config;
    tp_error error = {0};
    char formatted[1024];
    tp_config_defaults(&config, false);
    assert_int_equal(tp_config_parse(&config, text, size, "t.json", &error), TP_ERR_CONFIG);
    assert_string_equal(tp_error_format(&error, formatted, sizeof formatted), message);
}

static void test_bytes_that_are_no_text(void **state)
{
    (void)state;
    check_bytes("{\"targets\": {\"a\xff\": {}}}", 23,
                "t.json:1:14: unable to decode byte 0xff near '\"a': save the file as UTF-8");
    check_bytes("\xff\xfe{", 3, "t.json:1:1: unable to decode byte 0xff: save the file as UTF-8");
    check_bytes("{\0\"\0", 4, "t.json:1:2: NUL byte: save the file as UTF-8"); /* UTF-16 */
    /* A reader that skips these would take what follows. */
    check_bytes("{\"eps\": 1\n\0}", 12, "t.json:2:1: NUL byte: save the file as UTF-8");
    check_bytes("{\"eps\": 1}\0", 11, "t.json:1:11: NUL byte: save the file as UTF-8");
    check_bytes("{\"a\\\xef\xbc\xbd", 7,
                "t.json:1:2: invalid escape near '\"a\\?': write \\\\ for a \\");
    check_bytes("{\"\\u0000\": 1}", 13,
                "t.json:1:2: NUL byte in object key not supported near '\"\\u0000\"': no text "
                "holds such a character");
}

/* Deep nesting and a size that no configuration has are errors before memory is asked for. */
static void test_depth_and_size(void **state)
{
    (void)state;
    char *text = malloc(17 << 20);
    assert_non_null(text);
    memset(text, '[', 17 << 20);
    check_bytes(text, 100000,
                "t.json:1:2049: maximum parsing depth reached near '[': no field "
                "needs more than a few brackets");
    check_bytes(text, 17 << 20, "t.json is too large for a configuration");
    /* A name of megabytes is compared with none, and shown by its ends. */
    memset(text, 'a', 8 << 20);
    memcpy(text, "{\"", 2);
    memcpy(text + (8 << 20) - 5, "\": 1}", 5);
    check_bytes(
        text, 8 << 20,
        "t.json:1:2: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…aaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa: unknown field; remove it "
        "(`tensorprobe check --fields` lists all)");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_bytes_that_are_no_text),
        cmocka_unit_test(test_depth_and_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
