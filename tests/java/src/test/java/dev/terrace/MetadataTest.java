package dev.terrace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.SQLFeatureNotSupportedException;
import java.sql.Types;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class MetadataTest {
  private Connection connection;
  private DatabaseMetaData metadata;
  private String table;

  @BeforeEach
  void createTable() throws SQLException {
    connection = Database.connect();
    metadata = connection.getMetaData();
    table = Database.newTable();
    Database.execute(
        connection, "CREATE TABLE " + table + " (id BIGINT NOT NULL, name VARCHAR, price DECIMAL(15, 2), day DATE)");
  }

  @AfterEach
  void close() throws SQLException {
    Database.execute(connection, "DROP TABLE IF EXISTS " + table);
    connection.close();
  }

  private static List<String> column(ResultSet rows, String name) throws SQLException {
    List<String> values = new ArrayList<>();
    try (rows) {
      while (rows.next()) {
        values.add(rows.getString(name));
      }
    }
    return values;
  }

  @Test
  void tablesAndTheirTypes() throws SQLException {
    try (ResultSet rows = metadata.getTables(null, null, table, null)) {
      assertTrue(rows.next());
      assertEquals(table, rows.getString("TABLE_NAME"));
      assertEquals("TABLE", rows.getString("TABLE_TYPE"));
      assertFalse(rows.next());
    }
    assertTrue(column(metadata.getTables(null, null, "%", new String[] {"VIEW"}), "TABLE_NAME").stream()
        .noneMatch(table::equals));
    assertTrue(column(metadata.getTables(null, null, "%", new String[] {"TABLE"}), "TABLE_NAME").stream()
        .anyMatch(table::equals));
    assertTrue(column(metadata.getTableTypes(), "TABLE_TYPE").contains("TABLE"));
    assertTrue(column(metadata.getSchemas(), "TABLE_SCHEM").contains("system"));
    assertFalse(column(metadata.getCatalogs(), "TABLE_CAT").isEmpty());
  }

  @Test
  void patternsAndCatalogsNarrowTheSearch() throws SQLException {
    String escaped = table.replace("_", metadata.getSearchStringEscape() + "_");
    String[] tables = {"TABLE"};
    assertEquals(List.of(table), column(metadata.getTables("terrace", "publ_c", escaped, tables), "TABLE_NAME"));
    assertTrue(column(metadata.getTables("other", null, table, tables), "TABLE_NAME").isEmpty());
    assertTrue(column(metadata.getTables(null, "system", table, tables), "TABLE_NAME").isEmpty());
    assertEquals(List.of("public"), column(metadata.getSchemas("terrace", "publ%"), "TABLE_SCHEM"));
    assertEquals(List.of("price"), column(metadata.getColumns("terrace", "public", table, "pr%"), "COLUMN_NAME"));
  }

  @Test
  void columnsOfATable() throws SQLException {
    try (ResultSet rows = metadata.getColumns(null, null, table, null)) {
      assertTrue(rows.next());
      assertEquals("id", rows.getString("COLUMN_NAME"));
      assertEquals(Types.BIGINT, rows.getInt("DATA_TYPE"));
      assertEquals(DatabaseMetaData.columnNoNulls, rows.getInt("NULLABLE"));
      assertTrue(rows.next());
      assertEquals(Types.VARCHAR, rows.getInt("DATA_TYPE"));
      assertTrue(rows.next());
      assertEquals(Types.DECIMAL, rows.getInt("DATA_TYPE"));
      assertEquals(15, rows.getInt("COLUMN_SIZE"));
      assertEquals(2, rows.getInt("DECIMAL_DIGITS"));
      assertTrue(rows.next());
      assertEquals(Types.DATE, rows.getInt("DATA_TYPE"));
      assertFalse(rows.next());
    }
  }

  @Test
  void aTableWithoutKeysHasNone() throws SQLException {
    assertTrue(column(metadata.getPrimaryKeys(null, null, table), "COLUMN_NAME").isEmpty());
    assertTrue(column(metadata.getImportedKeys(null, null, table), "FKTABLE_NAME").isEmpty());
    assertTrue(column(metadata.getExportedKeys(null, null, table), "FKTABLE_NAME").isEmpty());
  }

  /** A tool makes tables of the types that it is told. */
  @Test
  void everyTypeThatIsAnnouncedCanBeCreated() throws SQLException {
    // The driver's own getTypeInfo is empty: these are the names that the server announces for it.
    for (String type : List.of("BOOLEAN", "BIGINT", "DOUBLE", "DECIMAL", "VARCHAR", "VARBINARY", "DATE", "TIMESTAMP")) {
      String other = Database.newTable();
      Database.execute(connection, "CREATE TABLE " + other + " (x " + type + ")");
      Database.execute(connection, "DROP TABLE " + other);
    }
  }

  @Test
  void theProductIsNamedAndTransactionsAreSnapshots() throws SQLException {
    assertTrue(metadata.getDatabaseProductName().toLowerCase().contains("terrace"));
    assertNotNull(metadata.getDatabaseProductVersion());
    assertEquals("\"", metadata.getIdentifierQuoteString());
    assertTrue(metadata.supportsTransactions());
    assertFalse(metadata.isReadOnly());
  }

  /** A value that the server does not give makes the driver fail with a NullPointerException. */
  @Test
  void everyPropertyOfTheDatabaseIsAnswered() throws IllegalAccessException {
    List<String> failed = new ArrayList<>();
    int answered = 0;
    for (Method method : DatabaseMetaData.class.getMethods()) {
      Class<?> result = method.getReturnType();
      boolean simple = result == boolean.class || result == int.class || result == String.class;
      if (method.getParameterCount() > 0 || !simple) {
        continue;
      }
      try {
        method.invoke(metadata);
        answered++;
      } catch (InvocationTargetException thrown) {
        if (!(thrown.getCause() instanceof SQLFeatureNotSupportedException)) {
          failed.add(method.getName() + ": " + thrown.getCause());
        }
      }
    }
    assertTrue(failed.isEmpty(), failed.toString());
    assertTrue(answered > 80, "only " + answered + " were answered");
  }
}
