/* Every misuse that can be told is an error, none is a crash, and what is forbidden changes nothing. */
#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C"
#endif
    pgf_status
    pgf_test_panic(pgf_error **error);

static const char NOWHERE[] = "host=127.0.0.1 port=1 user=app dbname=orders";

static void version(void)
{
    char parts[32];
    snprintf(parts, sizeof parts, "%d.%d.%d", PGF_VERSION_MAJOR, PGF_VERSION_MINOR, PGF_VERSION_PATCH);
    CHECK(strcmp(parts, PGF_VERSION) == 0);
    CHECK(strcmp(pgf_version(), PGF_VERSION) == 0);
    CHECK(pgf_version_number() == PGF_VERSION_NUMBER);
    CHECK(PGF_VERSION_NUMBER == PGF_VERSION_MAJOR * 65536 + PGF_VERSION_MINOR * 256 + PGF_VERSION_PATCH);
}

static void null_is_allowed_where_it_is_said_and_told_elsewhere(void)
{
    pgf_connector *connector = connector_of(NOWHERE);
    pgf_verdict verdict;
    memset(&verdict, 0, sizeof verdict);
    verdict.size = sizeof verdict;
    CHECK(pgf_connector_free(NULL) == PGF_OK && pgf_error_free(NULL) == PGF_OK);
    CHECK(pgf_text_free(NULL) == PGF_OK && pgf_event_free(NULL) == PGF_OK);
    FAILS(PGF_WRONG_CALL, "connector is NULL", pgf_connector_new(NOWHERE, strlen(NOWHERE), NULL, error));
    FAILS(PGF_WRONG_CALL, "conninfo is NULL", pgf_connector_new(NULL, 3, &connector, error));
    FAILS(PGF_WRONG_CALL, "negative", pgf_connector_new(NOWHERE, (size_t)-1, &connector, error));
    FAILS(PGF_WRONG_CALL, "not UTF-8 at byte 1", pgf_connector_new("h\xff", 2, &connector, error));
    FAILS(PGF_WRONG_CALL, "json is NULL", pgf_config_json(connector, NULL, error));
    FAILS(PGF_WRONG_CALL, "NULL", pgf_topology_json(NULL, NULL, error));
    FAILS(PGF_WRONG_CALL, "ready is NULL", pgf_health(connector, NULL, NULL, error));
    FAILS(PGF_WRONG_CALL, "event is NULL", pgf_next_event(connector, 0, NULL, error));
    FAILS(PGF_WRONG_CALL, "fd is NULL", pgf_event_fd(connector, NULL, error));
    FAILS(PGF_WRONG_CALL, "failure is NULL", pgf_classify(NULL, &verdict, error));
    FAILS(PGF_WRONG_CALL, "verdict is NULL", pgf_classify(NULL, NULL, error));
    CHECK(pgf_connector_new(NULL, 3, &connector, NULL) == PGF_WRONG_CALL);
    CHECK(pgf_error_message(NULL) == NULL && pgf_error_json(NULL) == NULL && pgf_error_sqlstate(NULL) == NULL);
    CHECK(pgf_error_code(NULL) == PGF_OK && pgf_error_class(NULL) == PGF_CLASS_NONE);
    CHECK(pgf_text_data(NULL) == NULL && pgf_text_len(NULL) == 0 && pgf_event_name(NULL) == NULL);
    CHECK(pgf_connector_free(connector) == PGF_OK);
}

static void what_was_freed_is_told(void)
{
    pgf_connector *connector = connector_of(NOWHERE);
    pgf_text *json = NULL;
    CHECK(pgf_connector_free(connector) == PGF_OK);
    CHECK(pgf_connector_free(connector) == PGF_WRONG_CALL);
    FAILS(PGF_WRONG_CALL, "no live pgf_connector", pgf_config_json(connector, &json, error));
    CHECK(json == NULL);

    connector = connector_of(NOWHERE);
    WORKS(pgf_config_json(connector, &json, error));
    CHECK(pgf_text_free(json) == PGF_OK && pgf_text_free(json) == PGF_WRONG_CALL && pgf_text_data(json) == NULL);
    /* Another kind of handle, and an address that never was one. */
    CHECK(pgf_error_free((pgf_error *)(void *)connector) == PGF_WRONG_CALL);
    CHECK(pgf_connector_free((pgf_connector *)(void *)&json) == PGF_WRONG_CALL);
    CHECK(pgf_error_code((pgf_error *)(void *)connector) == PGF_WRONG_CALL);
    CHECK(pgf_connector_free(connector) == PGF_OK);
}

static void a_panic_ends_at_the_barrier(void)
{
    FAILS(PGF_INTERNAL, "on purpose", pgf_test_panic(error));
    CHECK(pgf_test_panic(NULL) == PGF_INTERNAL);
}

static void an_error_tells_its_parts_and_keeps_the_secret(void)
{
    pgf_connector *connector = NULL;
    pgf_error *error = NULL;
    const char bad[] = "host=db-a password=hunter2 hots=db-b";
    CHECK(pgf_connector_new(bad, strlen(bad), &connector, &error) == PGF_INVALID_CONNINFO);
    CHECK(connector == NULL);
    CHECK(pgf_error_class(error) == PGF_CLASS_PERMANENT && pgf_error_sqlstate(error) == NULL);
    CHECK(strstr(pgf_error_message(error), "hots") && !strstr(pgf_error_message(error), "hunter2"));
    CHECK(strstr(pgf_error_json(error), "\"code\":\"InvalidConninfo\"") && !strstr(pgf_error_json(error), "hunter2"));
    CHECK(pgf_error_free(error) == PGF_OK);
}

static int says(pgf_connector *connector, const char *words)
{
    pgf_text *json = NULL;
    int found;
    WORKS(pgf_config_json(connector, &json, error));
    CHECK(strlen(pgf_text_data(json)) == pgf_text_len(json));
    found = strstr(pgf_text_data(json), words) != NULL;
    CHECK(pgf_text_free(json) == PGF_OK);
    return found;
}

static void options_are_set_before_the_first_use_only(void)
{
    pgf_connector *connector = connector_of("host=127.0.0.1 port=1 user=app password=hunter2");
    pgf_text *json = NULL;
    WORKS(pgf_connector_set(connector, "pool_max_conns", 14, "37", 2, error));
    CHECK(says(connector, "{\"value\":\"37\",\"origin\":\"code\"}") && !says(connector, "hunter2"));
    FAILS(PGF_INVALID_CONNINFO, "pool_max_conns", pgf_connector_set(connector, "pool_max_con", 12, "3", 1, error));
    FAILS(PGF_INVALID_OPTION, "pool_max_conns", pgf_connector_set(connector, "pool_max_conns", 14, "no", 2, error));
    CHECK(says(connector, "\"37\""));
    WORKS(pgf_topology_json(connector, &json, error));
    CHECK(strstr(pgf_text_data(json), "\"hosts\""));
    CHECK(pgf_text_free(json) == PGF_OK);
    FAILS(PGF_WRONG_CALL, "first use", pgf_connector_set(connector, "pool_max_conns", 14, "38", 2, error));
    CHECK(says(connector, "\"37\""));
    CHECK(pgf_connector_free(connector) == PGF_OK);
}

static void nothing_is_reported_as_ready_where_nothing_is(void)
{
    pgf_connector *connector = connector_of(NOWHERE);
    pgf_text *reason = NULL, *json = NULL;
    int32_t ready = 7;
    WORKS(pgf_health(connector, &ready, &reason, error));
    CHECK(ready == 0 && pgf_text_len(reason) > 0);
    CHECK(pgf_text_free(reason) == PGF_OK);
    WORKS(pgf_report_json(connector, &json, error));
    CHECK(strstr(pgf_text_data(json), "\"outages\""));
    CHECK(pgf_text_free(json) == PGF_OK);
    CHECK(pgf_connector_free(connector) == PGF_OK);
}

static void a_text_that_is_no_token_is_refused(void)
{
    pgf_connector *connector = connector_of(NOWHERE);
    pgf_outcome outcome = PGF_OUTCOME_UNKNOWN;
    FAILS(PGF_INVALID_OPTION, "token", pgf_check_outcome(connector, "1.2", 3, 10, &outcome, NULL, error));
    CHECK(pgf_connector_free(connector) == PGF_OK);
}

static void no_primary_leaves_the_outcome_unknown_within_the_bound(void)
{
    const char token[] = "1.0123456789abcdef0123456789abcdef.7000000000000000001.16384.1700000000000000.3.-.-.16390.16390";
    pgf_connector *connector = connector_of(NOWHERE);
    pgf_outcome outcome = PGF_OUTCOME_COMMITTED;
    pgf_text *reason = NULL;
    WORKS(pgf_check_outcome(connector, token, strlen(token), 50, &outcome, &reason, error));
    CHECK(outcome == PGF_OUTCOME_UNKNOWN && strstr(pgf_text_data(reason), "no primary"));
    CHECK(pgf_text_free(reason) == PGF_OK);
    CHECK(pgf_connector_free(connector) == PGF_OK);
}

static void *wait_for_events(void *connector)
{
    pgf_event *event = NULL;
    pgf_status status = PGF_OK;
    while (status == PGF_OK) {
        status = pgf_next_event((pgf_connector *)connector, 60000, &event, NULL);
        if (status == PGF_OK)
            CHECK(event != NULL && pgf_event_free(event) == PGF_OK);
    }
    CHECK(status == PGF_CLOSED || status == PGF_WRONG_CALL);
    return NULL;
}

/* No event comes with monitor=off, so only the end of the connector can end the wait. */
static void a_thread_that_waits_hears_that_the_connector_is_gone(void)
{
    const struct timespec pause = {0, 50000000};
    pgf_connector *connector = connector_of("host=127.0.0.1 port=1 user=app monitor=off");
    pthread_t waiter;
    CHECK(pthread_create(&waiter, NULL, wait_for_events, connector) == 0);
    nanosleep(&pause, NULL);
    CHECK(pgf_connector_free(connector) == PGF_OK);
    CHECK(pthread_join(waiter, NULL) == 0);
}

/* The child of a process whose connector is at work: what was the parent's is an error, and its own works. */
static void a_forked_child_makes_its_own(int prepared)
{
    pgf_connector *connector = connector_of(NOWHERE);
    int32_t ready;
    int status = 0;
    pid_t child;
    WORKS(pgf_health(connector, &ready, NULL, error));
    if (prepared)
        WORKS(pgf_before_fork(error));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        pgf_connector *own;
        pgf_event *event = NULL;
        if (prepared)
            CHECK(pgf_after_fork_child() == PGF_OK);
        FAILS(PGF_WRONG_CALL, "forked child", pgf_health(connector, &ready, NULL, error));
        CHECK(pgf_connector_free(connector) == PGF_WRONG_CALL);
        own = connector_of(NOWHERE);
        WORKS(pgf_next_event(own, 20000, &event, error));
        CHECK(event != NULL && strlen(pgf_event_name(event)) > 0);
        CHECK(pgf_event_free(event) == PGF_OK && pgf_connector_free(own) == PGF_OK);
        /* What the parent had is lost here on purpose; valgrind doesn't look where another program takes over. */
        execlp("true", "true", (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    WORKS(pgf_health(connector, &ready, NULL, error));
    CHECK(pgf_connector_free(connector) == PGF_OK);
}

static void nobody_is_located_where_nobody_is_and_no_number_is_guarded_for_nothing(void)
{
    pgf_connector *connector = connector_of(NOWHERE);
    pgf_target *target = NULL;
    pgf_op *op = NULL;
    pgf_text *reason = NULL;
    struct pollfd done;
    FAILS(PGF_WRONG_CALL, "target is NULL", pgf_locate(connector, 100, NULL, error));
    FAILS(PGF_WRONG_CALL, "read-write", pgf_locate_as(connector, "writer", 6, 100, &target, error));
    FAILS(PGF_DEADLINE_PASSED, "300 ms", pgf_locate(connector, 300, &target, error));
    FAILS(PGF_WRONG_CALL, "pgf_target is NULL", pgf_guard(connector, 0, NULL, error));
    FAILS(PGF_WRONG_CALL, "pgf_target is NULL", pgf_guard_reason(NULL, NULL, &reason, error));
    FAILS(PGF_WRONG_CALL, "pgf_target is NULL", pgf_feed(connector, NULL, "57P01", 5, error));
    WORKS(pgf_guard_peers(connector, NULL, error));
    CHECK(target == NULL && reason == NULL && pgf_target_host(NULL) == NULL && pgf_target_port(NULL) == 0);
    CHECK(pgf_target_free(NULL) == PGF_OK && pgf_op_free(NULL) == PGF_OK && pgf_op_fd(NULL) == -1);
    /* One that is waited for, and one that is given up. */
    WORKS(pgf_locate_start(connector, 300, &op, error));
    FAILS(PGF_WRONG_CALL, "isn't done", pgf_op_target(op, &target, error));
    done.fd = pgf_op_fd(op);
    done.events = POLLIN;
    CHECK(poll(&done, 1, 20000) == 1);
    FAILS(PGF_DEADLINE_PASSED, "300 ms", pgf_op_target(op, &target, error));
    FAILS(PGF_WRONG_CALL, "taken", pgf_op_target(op, &target, error));
    CHECK(pgf_op_free(op) == PGF_OK && pgf_op_free(op) == PGF_WRONG_CALL);
    WORKS(pgf_locate_start(connector, 60000, &op, error));
    CHECK(pgf_op_free(op) == PGF_OK && pgf_connector_free(connector) == PGF_OK);
}

int main(void)
{
    nobody_is_located_where_nobody_is_and_no_number_is_guarded_for_nothing();
    version();
    null_is_allowed_where_it_is_said_and_told_elsewhere();
    what_was_freed_is_told();
    a_panic_ends_at_the_barrier();
    an_error_tells_its_parts_and_keeps_the_secret();
    options_are_set_before_the_first_use_only();
    nothing_is_reported_as_ready_where_nothing_is();
    a_text_that_is_no_token_is_refused();
    no_primary_leaves_the_outcome_unknown_within_the_bound();
    a_thread_that_waits_hears_that_the_connector_is_gone();
    a_forked_child_makes_its_own(0);
    a_forked_child_makes_its_own(1);
    return 0;
}
