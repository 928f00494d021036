/* Prints what a connection string (read from standard input) came to, or the error, as JSON. */
#include "check.h"

int main(void)
{
    char text[65536];
    size_t len = fread(text, 1, sizeof text, stdin);
    pgf_connector *connector = NULL;
    pgf_error *error = NULL;
    pgf_text *json = NULL;
    if (pgf_connector_new(text, len, &connector, &error) != PGF_OK) {
        puts(pgf_error_json(error));
        CHECK(pgf_error_free(error) == PGF_OK);
        return 2;
    }
    WORKS(pgf_config_json(connector, &json, error));
    puts(pgf_text_data(json));
    CHECK(pgf_text_free(json) == PGF_OK);
    CHECK(pgf_connector_free(connector) == PGF_OK);
    return 0;
}
