/* A service on libpq: threads that insert, through failovers.
 *
 *     inserts 'postgresql://app@db-a,db-b,db-c/orders?target_session_attrs=read-write' 8
 *
 * It needs CREATE TABLE orders (worker int, seq int). With "plain" behind that it uses libpq alone, with the same string, to compare. It
 * prints a line for each row (ok WORKER SEQ NANOSECONDS) and each error (error WORKER SEQ NANOSECONDS: why), and ends with
 * its input. */
#include <pgfollow_libpq.h>

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, PATIENCE_MS = 30000 };

static const char *conninfo;
/* NULL: libpq alone. */
static pgf_connector *connector;
static volatile int over = 0;

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void rest(long milliseconds)
{
    const struct timespec pause = {0, milliseconds * 1000000};
    nanosleep(&pause, NULL);
}

static PGconn *open_one(void)
{
    pgf_error *error = NULL;
    PGconn *conn;
    if (!connector)
        return PQconnectdb(conninfo);
    conn = pgf_pq_connectdb(connector, PATIENCE_MS, &error);
    if (error) {
        fprintf(stderr, "%s\n", pgf_error_message(error));
        pgf_error_free(error);
    }
    return conn;
}

static void *work(void *number)
{
    const int worker = (int)(intptr_t)number;
    PGconn *conn = NULL;
    int seq = 0;
    while (!over) {
        char w[16], s[16];
        const char *values[2] = {w, s};
        PGresult *result;
        if (!conn || PQstatus(conn) != CONNECTION_OK) {
            PQfinish(conn);
            conn = open_one();
            if (!conn || PQstatus(conn) != CONNECTION_OK) {
                rest(20);
                continue;
            }
        }
        snprintf(w, sizeof w, "%d", worker);
        /* A number is never used twice: what became of a lost one only the table knows. */
        snprintf(s, sizeof s, "%d", seq);
        result = PQexecParams(conn, "INSERT INTO orders VALUES ($1::int, $2::int)", 2, NULL, values, NULL, NULL, 0);
        if (PQresultStatus(result) == PGRES_COMMAND_OK) {
            printf("ok %d %d %lld\n", worker, seq, now());
        } else {
            pgf_text *reason = connector ? pgf_pq_reason(conn) : NULL;
            printf("error %d %d %lld: %s\n", worker, seq, now(), reason ? pgf_text_data(reason) : "not ended by pgfollow");
            pgf_text_free(reason);
            /* A connection whose server refuses writes isn't worth keeping either. */
            PQfinish(conn);
            conn = NULL;
        }
        fflush(stdout);
        PQclear(result);
        seq++;
        rest(50);
    }
    PQfinish(conn);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[MOST];
    char byte;
    int n, count = argc > 2 ? atoi(argv[2]) : 1;
    if (argc < 2 || count < 1 || count > MOST) {
        fprintf(stderr, "usage: %s CONNINFO [THREADS, at most %d] [plain]\n", argv[0], MOST);
        return 2;
    }
    conninfo = argv[1];
    if (argc < 4) {
        pgf_error *error = NULL;
        if (pgf_connector_new(conninfo, strlen(conninfo), &connector, &error) != PGF_OK) {
            fprintf(stderr, "%s\n", pgf_error_message(error));
            pgf_error_free(error);
            return 1;
        }
    }
    for (n = 0; n < count; n++)
        if (pthread_create(&threads[n], NULL, work, (void *)(intptr_t)n) != 0)
            return 1;
    while (read(0, &byte, 1) > 0)
        continue;
    over = 1;
    for (n = 0; n < count; n++)
        pthread_join(threads[n], NULL);
    pgf_connector_free(connector);
    return 0;
}
