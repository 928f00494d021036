/* Makes and frees connectors that are at work, again and again. */
#include "check.h"

int main(int argc, char **argv)
{
    int n, cycles = argc > 1 ? atoi(argv[1]) : 200;
    for (n = 0; n < cycles; n++) {
        pgf_connector *connector = connector_of("host=127.0.0.1,127.0.0.2 port=1 user=app dbname=orders");
        pgf_event *event = NULL;
        pgf_text *json = NULL;
        int fd = -1;
        WORKS(pgf_event_fd(connector, &fd, error));
        CHECK(fd >= 0);
        WORKS(pgf_next_event(connector, n % 2 ? 0 : 20000, &event, error));
        CHECK(n % 2 || event);
        CHECK(pgf_event_free(event) == PGF_OK);
        WORKS(pgf_topology_json(connector, &json, error));
        CHECK(pgf_text_free(json) == PGF_OK);
        CHECK(pgf_connector_free(connector) == PGF_OK);
    }
    return 0;
}
