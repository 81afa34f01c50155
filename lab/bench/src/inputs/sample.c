struct node { int key; struct node *left, *right; };
static unsigned state = 1;
static unsigned next(void) { return state = state * 1103515245u + 12345u; }
struct node *insert(struct node *root, struct node *new_node) {
    struct node **place = &root;
    while (*place) place = new_node->key < (*place)->key ? &(*place)->left : &(*place)->right;
    *place = new_node;
    return root;
}
int height(const struct node *root) {
    if (!root) return 0;
    int left = height(root->left), right = height(root->right);
    return 1 + (left > right ? left : right);
}
void sort(int *numbers, int count) {
    for (int gap = count / 2; gap > 0; gap /= 2)
        for (int i = gap; i < count; i++) {
            int number = numbers[i], j = i;
            for (; j >= gap && numbers[j - gap] > number; j -= gap) numbers[j] = numbers[j - gap];
            numbers[j] = number;
        }
}
int evaluate(const char *text) {
    int value = 0, sign = 1, number = 0;
    for (; *text; text++) switch (*text) {
        case '0': case '1': case '2': case '3': case '4':
        case '5': case '6': case '7': case '8': case '9': number = number * 10 + *text - '0'; break;
        case '+': value += sign * number; number = 0; sign = 1; break;
        case '-': value += sign * number; number = 0; sign = -1; break;
        case ' ': break;
        default: return -1;
    }
    return value + sign * number;
}
double product[16][16];
void multiply(double (*a)[16], double (*b)[16]) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            double sum = 0;
            for (int k = 0; k < 16; k++) sum += a[i][k] * b[k][j];
            product[i][j] = sum;
        }
}
int main(void) {
    static struct node nodes[100];
    static int numbers[100];
    struct node *root = 0;
    for (int i = 0; i < 100; i++) { nodes[i].key = next() >> 16; root = insert(root, &nodes[i]); numbers[i] = next() >> 16; }
    sort(numbers, 100);
    return height(root) + evaluate("12+30-2") + numbers[50] % 3;
}
