// Crashes if its file begins with "bug" in which each letter has its highest bit, and loops on "end".
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
    unsigned char input[16] = {0};
    FILE *file = count > 1 ? fopen(arguments[1], "r") : NULL;
    if (!file || !fread(input, 1, sizeof input, file)) return 1;
    if (input[0] > 127)
        if (input[1] > 127)
            if (input[2] > 127)
                abort();
    while (input[0] == '!') {}
    return 0;
}
