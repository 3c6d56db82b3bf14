package dev.terrace;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Properties;
import java.util.UUID;

/** Connects to the server that TERRACE_FLIGHT_URI names. */
final class Database {
  private Database() {}

  static Connection connect() throws SQLException {
    return connect(new Properties());
  }

  static Connection connect(Properties properties) throws SQLException {
    String uri = System.getenv("TERRACE_FLIGHT_URI");
    if (uri == null) {
      throw new IllegalStateException("set TERRACE_FLIGHT_URI to grpc://host:port");
    }
    String address = uri.substring(uri.indexOf("://") + 3);
    return DriverManager.getConnection(
        "jdbc:arrow-flight-sql://" + address + "/?useEncryption=false", properties);
  }

  /** A table name no other test uses. */
  static String newTable() {
    return "j_" + UUID.randomUUID().toString().replace("-", "").substring(0, 12);
  }

  static void execute(Connection connection, String sql) throws SQLException {
    try (Statement statement = connection.createStatement()) {
      statement.execute(sql);
    }
  }
}
