/* Breaks what the sanitizer is to find: proves that it is linked in. */
#include "check.h"

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    if (strcmp(argv[1], "overflow") == 0) {
        volatile char *place = (volatile char *)malloc(8);
        place[8] = 1;
    } else {
        /* The handle is forgotten. */
        CHECK(pgf_connector_new("hots=", 5, NULL, NULL) == PGF_WRONG_CALL);
        connector_of("host=127.0.0.1 port=1 user=app");
    }
    return 0;
}
