/* A connect and a query from a program's own poll loop: nothing here waits anywhere else.
 *
 *     loop 'postgresql://app@db-a,db-b,db-c/orders?target_session_attrs=read-write'
 *
 * It prints the server's answer. */
#include <pgfollow_libpq.h>

#include <poll.h>
#include <stdio.h>

enum { PATIENCE_MS = 30000 };

/* One turn of the loop: a real one waits for all of its descriptors. */
static int turn(int fd, PostgresPollingStatusType wanted)
{
    struct pollfd waited;
    waited.fd = fd;
    waited.events = wanted == PGRES_POLLING_WRITING ? POLLOUT : POLLIN;
    return poll(&waited, 1, PATIENCE_MS) == 1;
}

static PGconn *connected(pgf_connector *connector, pgf_error **error)
{
    pgf_pq_connecting *connecting = pgf_pq_connect_start(connector, PATIENCE_MS, error);
    PostgresPollingStatusType next = PGRES_POLLING_READING;
    if (!connecting)
        return NULL;
    while (next != PGRES_POLLING_OK && next != PGRES_POLLING_FAILED && turn(pgf_pq_connect_fd(connecting), next))
        next = pgf_pq_connect_poll(connecting, error);
    return pgf_pq_connect_end(connecting);
}

static int ask(PGconn *conn)
{
    PGresult *result;
    int good = 0;
    if (!PQsendQuery(conn, "SELECT host(inet_server_addr())"))
        return 0;
    while (PQisBusy(conn))
        if (!turn(PQsocket(conn), PGRES_POLLING_READING) || !PQconsumeInput(conn))
            return 0;
    while ((result = PQgetResult(conn)) != NULL) {
        if (PQresultStatus(result) == PGRES_TUPLES_OK) {
            printf("%s\n", PQgetvalue(result, 0, 0));
            good = 1;
        }
        PQclear(result);
    }
    return good;
}

int main(int argc, char **argv)
{
    pgf_connector *connector = NULL;
    pgf_error *error = NULL;
    PGconn *conn = NULL;
    int good = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: %s CONNINFO\n", argv[0]);
        return 2;
    }
    if (pgf_connector_new(argv[1], strlen(argv[1]), &connector, &error) == PGF_OK) {
        conn = connected(connector, &error);
        good = conn && PQstatus(conn) == CONNECTION_OK && ask(conn);
    }
    if (error)
        fprintf(stderr, "%s\n", pgf_error_message(error));
    else if (!good)
        fprintf(stderr, "%s", PQerrorMessage(conn));
    pgf_error_free(error);
    PQfinish(conn);
    pgf_connector_free(connector);
    return good ? 0 : 1;
}
