/* Follows a cluster through a promotion by the events' descriptor, while other threads ask. Prints "ready" when the
 * first primary is known; ends well when the second one is. */
#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

enum { ASKERS = 4 };

static volatile sig_atomic_t over = 0;

static int is_ready(pgf_connector *connector)
{
    int32_t ready = -1;
    WORKS(pgf_health(connector, &ready, NULL, error));
    return ready;
}

static void *ask(void *connector)
{
    const struct timespec pause = {0, 5000000};
    while (!over) {
        pgf_text *json = NULL;
        WORKS(pgf_topology_json((pgf_connector *)connector, &json, error));
        CHECK(pgf_text_len(json) > 0 && pgf_text_free(json) == PGF_OK);
        is_ready((pgf_connector *)connector);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

/* The next event, through the descriptor; the test as a whole is bounded by its starter. */
static pgf_event *next(pgf_connector *connector, int fd)
{
    pgf_event *event = NULL;
    struct pollfd waited;
    waited.fd = fd;
    waited.events = POLLIN;
    CHECK(poll(&waited, 1, 60000) == 1);
    WORKS(pgf_next_event(connector, 0, &event, error));
    CHECK(event != NULL);
    return event;
}

static void a_stranger_s_token_is_not_taken_for_ours(pgf_connector *connector)
{
    const char token[] = "1.0123456789abcdef0123456789abcdef.7.16384.1700000000000000.3.-.-.16390.16390";
    pgf_outcome outcome = PGF_OUTCOME_COMMITTED;
    pgf_text *reason = NULL;
    WORKS(pgf_check_outcome(connector, token, strlen(token), 20000, &outcome, &reason, error));
    CHECK(outcome == PGF_OUTCOME_UNKNOWN && strstr(pgf_text_data(reason), "another cluster"));
    CHECK(pgf_text_free(reason) == PGF_OK);
}

int main(int argc, char **argv)
{
    pgf_connector *connector;
    pthread_t askers[ASKERS];
    struct sigaction pipe_action;
    int n, fd = -1, primaries = 0;
    CHECK(argc == 2);
    connector = connector_of(argv[1]);
    WORKS(pgf_event_fd(connector, &fd, error));
    for (n = 0; n < ASKERS; n++)
        CHECK(pthread_create(&askers[n], NULL, ask, connector) == 0);
    while (primaries < 2) {
        pgf_event *event = next(connector, fd);
        if (strcmp(pgf_event_name(event), "new_primary") == 0) {
            CHECK(strstr(pgf_event_json(event), "new_primary") && strlen(pgf_event_text(event)) > 0);
            CHECK(pgf_event_missed(event) == 0);
            if (++primaries == 1) {
                a_stranger_s_token_is_not_taken_for_ours(connector);
                puts("ready");
                fflush(stdout);
            }
        }
        CHECK(pgf_event_free(event) == PGF_OK);
    }
    while (!is_ready(connector)) {
        const struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
    }
    over = 1;
    for (n = 0; n < ASKERS; n++)
        CHECK(pthread_join(askers[n], NULL) == 0);
    CHECK(sigaction(SIGPIPE, NULL, &pipe_action) == 0 && pipe_action.sa_handler == SIG_DFL);
    CHECK(pgf_connector_free(connector) == PGF_OK);
    return 0;
}
