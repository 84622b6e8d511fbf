#include "sinks/heatmap.h"

#include <inttypes.h>
#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define LEFT 60u
#define TOP 20u
#define PLOT_WIDTH (2 * TP_HEATMAP_COLUMNS)
#define PLOT_HEIGHT 420u
#define LEVELS 254u /* colours for values; behind them: */
#define PAPER 254u
#define INK 255u
#define GLYPH_WIDTH 5u
#define GLYPH_HEIGHT 7u

struct tp_heatmap {
    uint64_t first_step, last_step;
    uint64_t steps;
    double low, high;
    uint32_t bins;
    uint32_t columns; /* that are full */
    uint32_t merged;  /* steps in each of them */
    uint32_t in_last; /* steps in the column behind them */
    float cells[];    /* column by column; one more than there can be full */
};

tp_heatmap *tp_heatmap_new(const tp_histogram *like)
{
    const uint32_t bins = like->bin_count < TP_HEATMAP_BINS ? like->bin_count : TP_HEATMAP_BINS;
    const size_t cells = (size_t)bins * (TP_HEATMAP_COLUMNS + 1);
    tp_heatmap *map = tp_calloc(1, sizeof *map + cells * sizeof(float));
    if (map != NULL) {
        map->bins = bins;
        map->merged = 1;
        map->low = like->low;
        map->high = like->high;
    }
    return map;
}

/* Two columns become one. */
static void halve(tp_heatmap *map)
{
    for (uint32_t c = 0; c < TP_HEATMAP_COLUMNS / 2; c++) {
        for (uint32_t b = 0; b < map->bins; b++) {
            map->cells[c * map->bins + b] =
                map->cells[2 * c * map->bins + b] + map->cells[(2 * c + 1) * map->bins + b];
        }
    }
    map->columns = TP_HEATMAP_COLUMNS / 2;
    memset(map->cells + (size_t)map->columns * map->bins, 0,
           sizeof(float) * map->bins * (TP_HEATMAP_COLUMNS + 1 - map->columns));
    map->merged *= 2;
}

void tp_heatmap_add(tp_heatmap *map, uint64_t step, const tp_histogram *histogram)
{
    if (histogram->bin_count != map->bins) {
        return;
    }
    if (map->columns == TP_HEATMAP_COLUMNS) {
        halve(map);
    }
    float *column = map->cells + (size_t)map->columns * map->bins;
    for (uint32_t b = 0; b < map->bins; b++) {
        column[b] += (float)histogram->bins[b];
    }
    map->first_step = map->steps == 0 ? step : map->first_step;
    map->last_step = step;
    map->steps++;
    if (++map->in_last == map->merged) {
        map->columns++;
        map->in_last = 0;
    }
}

uint64_t tp_heatmap_steps(const tp_heatmap *map)
{
    return map->steps;
}

/* Digits, minus and point: a byte a row, the highest of five bits on the left. */
static const uint8_t *glyph(char letter)
{
    static const uint8_t glyphs[12][GLYPH_HEIGHT] = {
        {14, 17, 19, 21, 25, 17, 14}, {4, 12, 4, 4, 4, 4, 14},  {14, 17, 1, 2, 4, 8, 31},
        {31, 2, 4, 2, 1, 17, 14},     {2, 6, 10, 18, 31, 2, 2}, {31, 16, 30, 1, 1, 17, 14},
        {6, 8, 16, 30, 17, 17, 14},   {31, 1, 2, 4, 8, 8, 8},   {14, 17, 17, 14, 17, 17, 14},
        {14, 17, 17, 15, 1, 2, 12},   {0, 0, 0, 31, 0, 0, 0},   {0, 0, 0, 0, 0, 12, 12},
    };
    return letter >= '0' && letter <= '9' ? glyphs[letter - '0'] : glyphs[letter == '-' ? 10 : 11];
}

static void write_text(uint8_t *pixels, uint32_t x, uint32_t y, const char *text)
{
    for (; *text != '\0' && x + GLYPH_WIDTH < TP_HEATMAP_WIDTH; text++, x += GLYPH_WIDTH + 1) {
        const uint8_t *rows = glyph(*text);
        for (uint32_t row = 0; row < GLYPH_HEIGHT; row++) {
            for (uint32_t bit = 0; bit < GLYPH_WIDTH; bit++) {
                if ((rows[row] >> (GLYPH_WIDTH - 1 - bit) & 1) != 0) {
                    pixels[(y + row) * TP_HEATMAP_WIDTH + x + bit] = INK;
                }
            }
        }
    }
}

/* The edges of the topmost and the lowest bin, and the first and the last step. */
static void write_labels(const tp_heatmap *map, uint8_t *pixels)
{
    char text[32];
    snprintf(text, sizeof text, "%.2f", map->low);
    write_text(pixels, LEFT - 6 - 6 * (uint32_t)strlen(text), TOP, text);
    snprintf(text, sizeof text, "%.2f", map->high);
    write_text(pixels, LEFT - 6 - 6 * (uint32_t)strlen(text), TOP + PLOT_HEIGHT - GLYPH_HEIGHT,
               text);
    snprintf(text, sizeof text, "%" PRIu64, map->first_step);
    write_text(pixels, LEFT, TOP + PLOT_HEIGHT + 8, text);
    snprintf(text, sizeof text, "%" PRIu64, map->last_step);
    write_text(pixels, LEFT + PLOT_WIDTH - 6 * (uint32_t)strlen(text), TOP + PLOT_HEIGHT + 8, text);
}

/* The share of the largest value, of which a column that is not full yet has less. */
static void write_plot(const tp_heatmap *map, uint8_t *pixels)
{
    const uint32_t columns = map->columns + (map->in_last > 0);
    double largest = 0;
    for (uint32_t c = 0; c < columns; c++) {
        const double steps = c < map->columns ? map->merged : map->in_last;
        for (uint32_t b = 0; b < map->bins; b++) {
            const double value = (double)map->cells[c * map->bins + b] / steps;
            largest = value > largest ? value : largest;
        }
    }
    for (uint32_t b = 0; b < map->bins; b++) {
        const uint32_t from = TOP + b * PLOT_HEIGHT / map->bins;
        const uint32_t to = TOP + (b + 1) * PLOT_HEIGHT / map->bins;
        uint8_t *row = pixels + (size_t)from * TP_HEATMAP_WIDTH + LEFT;
        for (uint32_t x = 0; x < PLOT_WIDTH && columns > 0; x++) {
            const uint32_t c = (uint32_t)((uint64_t)x * columns / PLOT_WIDTH);
            const double steps = c < map->columns ? map->merged : map->in_last;
            const double value = (double)map->cells[c * map->bins + b] / steps;
            row[x] = largest > 0 ? (uint8_t)(value / largest * (LEVELS - 1) + 0.5) : 0;
        }
        for (uint32_t y = from + 1; y < to; y++) {
            memcpy(pixels + (size_t)y * TP_HEATMAP_WIDTH + LEFT, row, PLOT_WIDTH);
        }
    }
}

static png_byte byte_of(double share)
{
    return (png_byte)(share <= 0 ? 0 : share >= 1 ? 255 : share * 255 + 0.5);
}

/* The colours that matplotlib calls hot: black, red, yellow, white. */
static void make_palette(png_color palette[256])
{
    for (uint32_t i = 0; i < LEVELS; i++) {
        const double x = (double)i / (LEVELS - 1);
        palette[i] = (png_color){byte_of(0.0416 + x * (1 - 0.0416) / 0.365079),
                                 byte_of((x - 0.365079) / (0.746032 - 0.365079)),
                                 byte_of((x - 0.746032) / (1 - 0.746032))};
    }
    palette[PAPER] = (png_color){255, 255, 255};
    palette[INK] = (png_color){0, 0, 0};
}

static png_voidp allocate(png_structp png, png_alloc_size_t size)
{
    (void)png;
    return tp_alloc(size);
}

static void release(png_structp png, png_voidp memory)
{
    (void)png;
    tp_free(memory);
}

static void take_bytes(png_structp png, png_bytep bytes, png_size_t size)
{
    tp_buf_put(png_get_io_ptr(png), bytes, size);
}

/* Nothing to say: what failed is an allocation, which the buffer tells. */
static void fail(png_structp png, png_const_charp message)
{
    (void)message;
    png_longjmp(png, 1);
}

static void ignore(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static void encode(const uint8_t *pixels, tp_buf *out)
{
    png_color palette[256];
    png_infop info = NULL;
    png_structp png = png_create_write_struct_2(PNG_LIBPNG_VER_STRING, NULL, fail, ignore, NULL,
                                                allocate, release);
    if (png == NULL) {
        out->failed = true;
        return;
    }
    info = png_create_info_struct(png);
    if (info == NULL || setjmp(png_jmpbuf(png)) != 0) {
        out->failed = true;
        png_destroy_write_struct(&png, &info);
        return;
    }
    make_palette(palette);
    png_set_write_fn(png, out, take_bytes, NULL);
    png_set_compression_level(png, 1);
    png_set_filter(png, PNG_FILTER_TYPE_BASE, PNG_FILTER_NONE);
    png_set_IHDR(png, info, TP_HEATMAP_WIDTH, TP_HEATMAP_HEIGHT, 8, PNG_COLOR_TYPE_PALETTE,
                 PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_set_PLTE(png, info, palette, 256);
    png_write_info(png, info);
    for (uint32_t y = 0; y < TP_HEATMAP_HEIGHT; y++) {
        png_write_row(png, pixels + (size_t)y * TP_HEATMAP_WIDTH);
    }
    png_write_end(png, NULL);
    png_destroy_write_struct(&png, &info);
}

void tp_heatmap_draw(const tp_heatmap *map, tp_buf *png)
{
    tp_buf_clear(png);
    uint8_t *pixels = tp_alloc((size_t)TP_HEATMAP_WIDTH * TP_HEATMAP_HEIGHT);
    if (pixels == NULL) {
        png->failed = true;
        return;
    }
    memset(pixels, PAPER, (size_t)TP_HEATMAP_WIDTH * TP_HEATMAP_HEIGHT);
    write_plot(map, pixels);
    write_labels(map, pixels);
    encode(pixels, png);
    tp_free(pixels);
}

void tp_heatmap_free(tp_heatmap *map)
{
    tp_free(map);
}
